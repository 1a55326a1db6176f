"""22.2: one clipping norm for a model of which some weights are cut over the ranks, and others are on every rank."""

import math

import torch

from ddp_course.grader.harness.tensors import largest_gap
from ddp_course.grader.vocabulary import check, driver_job, expect, expect_few_operations, number, plural

from .driver import FROZEN, MANY, WHOLE, ZERO, gradients

FUNCTION = "clip"
NORM_CLOSE = 1e-9  # relative
GRADIENT_CLOSE = 1e-6  # torch divides by the norm + 1e-6
RUNS = {"a small limit": 1.5, "a limit that is not reached": 1e4, "nothing is cut": 1.0, "everything is cut": 1.0}
RUNS |= {ZERO: 1.0, MANY: 1.0, "a limit above what any rank holds": 24.0}  # of several ranks
RUNS |= {f"batch {number}": 0.7 for number in range(1, 9)}  # another rounding in each

CALLS = {scenario: (limit, scenario) for scenario, limit in RUNS.items()}
JOBS = [driver_job(world, FUNCTION, CALLS) for world in (2, 4, 3, 1)]


@check("the norm is that of one process, on every rank")
def the_norm_is_that_of_one_process(case, rank, result):
    norm, right = number(result["norm"]), one_process_norm(case)
    digits, look_at = 6, "cut weights: squares added over the ranks, those of whole weights count once; then the root"
    if math.isclose(norm, right, rel_tol=1e-5):
        digits, look_at = 12, "the last digits: in which dtype the squares are added up"
    expect(
        math.isclose(norm, right, rel_tol=NORM_CLOSE),
        f"clip returned {norm:.{digits}g} on rank {rank}; one process has {right:.{digits}g}",
        look_at,
    )


@check("all gradients are those of one process")
def the_gradients_are_those_of_one_process(case, rank, result):
    norm, limit = one_process_norm(case), RUNS[case.scenario]
    for name, whole_gradient in gradients(case.scenario).items():
        gradient, whole = result["gradients"][name], whole_gradient * limit / max(norm, limit)
        right = whole if name in WHOLE else whole.chunk(case.world)[rank]
        gap = largest_gap(gradient, right)
        expect(
            gap < GRADIENT_CLOSE,
            f"the gradient of {name} on rank {rank} is {gap:.1e} away from one process; the norm is {norm:.3g}, the "
            f"limit {limit:g}",
            "one factor for all gradients of all ranks, max_norm over the norm, and never more than 1",
        )


@check("a gradient of None stays None")
def no_gradient_is_made(case, rank, result):
    expect(
        result["gradients"][FROZEN] is None,
        f"on rank {rank} clip has given a gradient to a weight that had none",
        "a .grad that is None: with zeros in its place, the optimizer's weight decay moves the weight",
    )


@check("what all ranks hold stays bit-equal")
def whole_gradients_stay_equal(case, rank, result):
    for name in (name for name in result["gradients"] if name in WHOLE):
        expect(
            torch.equal(result["gradients"][name], case.results[0]["gradients"][name]),
            f"the gradient of {name} on rank {rank} differs from rank 0's by a rounding",
            "the order in which a rank adds up the parts of all ranks: it has to be the same one everywhere",
        )


@check(lambda started: f"{plural(max(started), 'collective')}, of a few numbers")
def little_is_sent(case):
    return expect_few_operations(case, 2, 64, "sums of squares are numbers; gradients stay where they are")


def one_process_norm(case):
    """The norm of all gradients of one process, as one vector."""
    return torch.cat([gradient.flatten() for gradient in gradients(case.scenario).values()]).norm().item()
