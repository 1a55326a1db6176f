"""22.2: one clipping norm for a model of which some weights are cut over the ranks, and others are on every rank."""

import math

import torch

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.messages import assert_few_collectives
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import number

from .driver import MANY, WHOLE, ZERO, gradients

FUNCTION = "clip"
NORM, CLOSE = 1e-9, 1e-6  # of a norm; of a gradient: torch divides by the norm + 1e-6
RUNS = {"a small limit": 1.5, "a limit that is not reached": 1e4, "nothing is cut": 1.0, "everything is cut": 1.0}
RUNS |= {ZERO: 1.0, MANY: 1.0}
RUNS |= {f"batch {number}": 0.7 for number in range(1, 9)}  # another rounding in each


def job(world):
    calls = tuple(Call([(limit, given)] * world, given) for given, limit in RUNS.items())
    return Job(world, FUNCTION, calls, driver=True)


JOBS = [job(world) for world in (2, 4, 3, 1)]


def the_norm_is_that_of_one_process(records):
    """On every rank clip returns the norm of all gradients, each number counted once."""
    for case, right, _ in runs(records):
        for rank, result in enumerate(case.results):
            norm = number(result["norm"])
            if not math.isclose(norm, right, rel_tol=NORM):
                digits = 6
                look = "cut weights: squares added over the ranks, those of whole weights count once; then the root"
                if math.isclose(norm, right, rel_tol=1e-5):
                    look, digits = "the last digits: in which dtype the squares are added up", 12
                found = f"clip returned {norm:.{digits}g} on rank {rank}; one process has {right:.{digits}g}"
                raise Wrong(case.where + found, look)
    return "the norm is that of one process, on every rank"


def the_gradients_are_those_of_one_process(records):
    """After clip every gradient is that of one process, or the part of it that the rank holds."""
    for case, right, scale in runs(records):
        for rank, result in enumerate(case.results):
            for name, gradient in gradients(case.given).items():
                if name not in result["gradients"]:
                    continue
                own = scale * (gradient.chunk(case.world)[rank] if name not in WHOLE else gradient)
                mine = result["gradients"][name]
                gap = (mine - own).abs().max().item() if torch.is_tensor(mine) and mine.shape == own.shape else math.inf
                if not gap < CLOSE:
                    raise Wrong(
                        f"{case.where}the gradient of {name} on rank {rank} is {gap:.1e} away from one process; the "
                        f"norm is {right:.3g}, the limit {RUNS[case.given]:g}",
                        "one factor for all gradients of all ranks, max_norm over the norm, and never more than 1",
                    )
    return "all gradients are those of one process"


def whole_gradients_stay_equal(records):
    """Gradients that all ranks hold are bit-equal on all ranks after clip."""
    for case, _, _ in runs(records):
        for rank, result in enumerate(case.results):
            for name, gradient in result["gradients"].items():
                if name in WHOLE and not torch.equal(gradient, case.results[0]["gradients"][name]):
                    raise Wrong(
                        f"{case.where}the gradient of {name} on rank {rank} differs from rank 0's by a rounding",
                        "the order in which a rank adds: parts that differ by rank have to be added up in one place",
                    )
    return "what all ranks hold stays bit-equal"


def little_is_sent(records):
    """A rank starts at most two collectives, with 64 bytes in all."""
    few = assert_few_collectives(cases(records), 2, 64, "sums of squares are numbers; gradients stay where they are")
    return f"{few}, of a few numbers"


CHECKS = [
    the_norm_is_that_of_one_process,
    the_gradients_are_those_of_one_process,
    whole_gradients_stay_equal,
    little_is_sent,
]


def runs(records):
    """Each case, the norm of one process, and the factor by which it scales."""
    for case in cases(records):
        of_one = [gradient for name, gradient in gradients(case.given).items() if name != "frozen"]
        norm = torch.cat([gradient.flatten() for gradient in of_one]).norm().item()
        yield case, norm, RUNS[case.given] / max(norm, RUNS[case.given])
