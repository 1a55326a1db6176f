"""17.1: the optimizer's state divided over the ranks, by hand, and clipping by the norm of the whole gradient."""

import math

import torch

from ddp_course.grader.harness.tensors import largest_gap
from ddp_course.grader.vocabulary import (
    check,
    driver_job,
    expect,
    expect_few_bytes,
    expect_small_gap,
    is_close,
    number,
    show,
)

from .driver import OPTIMIZERS, SHAPES, gradients, initial_weights

FUNCTION = "ShardedOptimizer"
TOTAL = sum(math.prod(shape) for shape in SHAPES)
SPARE = 64  # bytes per step for numbers such as a norm
NORM_TOLERANCE = 1e-9  # relative
WEIGHT_TOLERANCE = 1e-6  # absolute; some answers clip by max_norm / (norm + 1e-6)
NO_LIMIT, SMALL, LARGE = None, 2.0, 1e6
RUNS = {
    "AdamW": ("AdamW", [NO_LIMIT] * 4),
    "SGD with momentum": ("SGD", [NO_LIMIT] * 4),
    "SGD, clipped in some steps": ("SGD", [SMALL, LARGE, SMALL, NO_LIMIT, 0.0]),  # 0 is a limit, too
}
JOBS = [driver_job(world, FUNCTION, RUNS, loads=("torch._dynamo",)) for world in (2, 4, 3, 1)]


@check("each rank holds its share of the optimizer's state")
def each_rank_holds_its_share(case, rank, result):
    expect(
        result["optimizer_elements"] <= TOTAL // case.world + len(SHAPES),  # at most one more for each parameter
        f"the optimizer of rank {rank} got {result['optimizer_elements']} of {TOTAL} elements; its share is "
        f"{math.ceil(TOTAL / case.world)}",
        "what make_optimizer is given: this rank's part, and nothing else",
    )


@check("the norm is that of the whole gradient, on every rank")
def the_norm_is_that_of_the_whole_gradient(case):
    for step, (_, right) in enumerate(one_process(case)):
        for rank, result in enumerate(case.results):
            norm = number(result["steps"][step][1])
            digits = 12 if is_close(norm, right, rel_tol=1e-5) else 6
            returned, one_process_has = show(norm, digits), show(right, digits)
            expect(
                is_close(norm, right, rel_tol=NORM_TOLERANCE),
                f"step {step} returned the norm {returned} on rank {rank}; one process has {one_process_has}",
                "the squares of the averaged gradient, added over the ranks, then the root; all that before clipping",
            )


@check("after every step all weights are those of one process, on 1 to 4 ranks")
def the_weights_are_those_of_one_process(case):
    for step, (right, _) in enumerate(one_process(case)):
        for rank, result in enumerate(case.results):
            for index, (weight, expected) in enumerate(zip(result["steps"][step][0], right, strict=True)):
                expect_small_gap(
                    largest_gap(weight, expected),
                    WEIGHT_TOLERANCE,
                    f"after step {step} parameter {index} on rank {rank}",
                    "clipping scales by max_norm over the norm, never larger than 1; max_norm can be 0"
                    if "clipped" in case.scenario
                    else "the average over the ranks, this rank's part of it, and the parts put back in order",
                )


@check("a step reduces the gradient once and gathers the shares once")
def little_is_sent(case, rank, result):
    steps, operations = len(result["steps"]), case.operations[rank]
    gathers = [operation for operation in operations if operation.op == "all_gather"]
    share = 8 * (TOTAL // case.world + len(SHAPES))
    look_at = "an average is a reduce-scatter or an all-reduce; only the shards of the weights are gathered"
    purpose = f" in {steps} steps; a share has {8 * math.ceil(TOTAL / case.world)}, the gradient {8 * TOTAL}"
    expect_few_bytes(rank, gathers, steps * (share + SPARE), purpose, look_at)
    expect_few_bytes(rank, operations, steps * (16 * (TOTAL + len(SHAPES)) + SPARE), purpose, look_at)


def one_process(case):
    """(weights, norm) after each step of one process with the averaged gradients."""
    optimizer_name, max_norms = RUNS[case.scenario]
    parameters = [torch.nn.Parameter(tensor) for tensor in initial_weights()]
    optimizer = OPTIMIZERS[optimizer_name](parameters)
    for step, max_norm in enumerate(max_norms):
        gradients_of_ranks = [gradients(rank, step) for rank in range(case.world)]
        for parameter, *rank_gradients in zip(parameters, *gradients_of_ranks, strict=True):
            parameter.grad = sum(rank_gradients) / case.world
        norm = torch.cat([parameter.grad.flatten() for parameter in parameters]).norm()
        for parameter in parameters:
            parameter.grad *= 1 if max_norm is None else min(1, max_norm / norm)
        optimizer.step()
        yield [parameter.detach().clone() for parameter in parameters], norm.item()
