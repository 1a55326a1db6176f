"""17.1: the optimizer's state divided over the ranks, by hand, and clipping by the norm of the whole gradient."""

import math

import torch

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import number

from .driver import OPTIMIZERS, SHAPES, gradients, start

FUNCTION = "ShardedOptimizer"
TOTAL = sum(math.prod(shape) for shape in SHAPES)
SPARE = 64  # bytes per step for numbers such as a norm
SAME, CLOSE = 1e-9, 1e-6  # of a norm; of a weight: some clip by max_norm / (norm + 1e-6)
NO_LIMIT, SMALL, LARGE = None, 2.0, 1e6
RUNS = {
    "AdamW": ("AdamW", [NO_LIMIT] * 4),
    "SGD with momentum": ("SGD", [NO_LIMIT] * 4),
    "SGD, clipped in some steps": ("SGD", [SMALL, LARGE, SMALL, NO_LIMIT, 0.0]),  # 0 is a limit, too
}


def job(world):
    calls = [Call([one] * world, given) for given, one in RUNS.items()]
    return Job(world, FUNCTION, tuple(calls), driver=True, loads=("torch._dynamo",))


JOBS = [job(world) for world in (2, 4, 3, 1)]


def each_rank_holds_its_share(records):
    """The optimizer of a rank is given one part in `world` of all elements, at most one more for each parameter."""
    for case in cases(records):
        most = TOTAL // case.world + len(SHAPES)
        for rank, result in enumerate(case.results):
            if result["held"] > most:
                raise Wrong(
                    f"{case.where}the optimizer of rank {rank} got {result['held']} of {TOTAL} elements; "
                    f"its share is {math.ceil(TOTAL / case.world)}",
                    "what make_optimizer is given: this rank's part, and nothing else",
                )
    return "each rank holds its share of the optimizer's state"


def the_norm_is_that_of_the_whole_gradient(records):
    """step returns, on every rank, the norm of the whole averaged gradient before it was clipped."""
    for case in cases(records):
        for step, (_, right) in enumerate(one_process(case)):
            for rank, result in enumerate(case.results):
                norm = number(result["steps"][step][1])
                if not math.isclose(norm, right, rel_tol=SAME):
                    digits = 12 if math.isclose(norm, right, rel_tol=1e-5) else 6
                    raise Wrong(
                        f"{case.where}step {step} returned the norm {norm:.{digits}g} on rank {rank}; one process has "
                        f"{right:.{digits}g}",
                        "the squares of the average in all parts, added over the ranks; then the root; before clipping",
                    )
    return "the norm is that of the whole gradient, on every rank"


def the_weights_are_those_of_one_process(records):
    """After every step every rank holds the weights of one process with the whole optimizer."""
    for case in cases(records):
        for step, (right, _) in enumerate(one_process(case)):
            for rank, result in enumerate(case.results):
                for place, (mine, one) in enumerate(zip(result["steps"][step][0], right, strict=True)):
                    gap = (mine - one).abs().max().item() if mine.shape == one.shape else math.inf
                    if not gap < CLOSE:
                        look = "the average over the ranks, this rank's part of it, and the parts put back in order"
                        if "clipped" in case.given:
                            look = "clipping scales by max_norm over the norm, never larger than 1; max_norm can be 0"
                        raise Wrong(
                            f"{case.where}after step {step} parameter {place} on rank {rank} is {gap:.1e} away from "
                            "one process",
                            look,
                        )
    return "after every step all weights are those of one process, on 1 to 4 ranks"


def little_is_sent(records):
    """A step hands over the gradient once and gathers the shares once; whole gradients are not gathered."""
    for case in cases(records):
        share = 8 * (TOTAL // case.world + len(SHAPES))
        steps = len(case.results[0]["steps"])
        for rank, operations in enumerate(case.operations):
            gathered = sum(one.bytes for one in operations if one.op == "all_gather")
            sent = sum(one.bytes for one in operations)
            if gathered > steps * (share + SPARE) or sent > steps * (8 * (2 * TOTAL + 2 * len(SHAPES)) + SPARE):
                raise Wrong(
                    f"{case.where}rank {rank} handed over {sent // steps} bytes per step, {gathered // steps} of them "
                    f"to be gathered; the gradient has {8 * TOTAL}, a share {8 * math.ceil(TOTAL / case.world)}",
                    "an average is a reduce-scatter or an all-reduce; only the shards of the weights are gathered",
                )
    return "a step reduces the gradient once and gathers the shares once"


CHECKS = [
    each_rank_holds_its_share,
    the_norm_is_that_of_the_whole_gradient,
    the_weights_are_those_of_one_process,
    little_is_sent,
]


def one_process(case):
    """(weights, norm) after each step of one process with the averaged gradients."""
    make, norms = RUNS[case.given]
    parameters = [torch.nn.Parameter(tensor) for tensor in start()]
    optimizer = OPTIMIZERS[make](parameters)
    for step, max_norm in enumerate(norms):
        of_ranks = [gradients(rank, step) for rank in range(case.world)]
        for parameter, *parts in zip(parameters, *of_ranks, strict=True):
            parameter.grad = sum(parts) / case.world
        norm = torch.cat([parameter.grad.flatten() for parameter in parameters]).norm()
        for parameter in parameters:
            parameter.grad *= 1 if max_norm is None else min(1, max_norm / norm)
        optimizer.step()
        yield [parameter.detach().clone() for parameter in parameters], norm.item()
