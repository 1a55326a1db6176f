"""25.1: DiLoCo, whose outer optimizer has to step from the weights after the last outer step."""

import math

import torch

from ddp_course.grader.harness.tensors import largest_gap
from ddp_course.grader.vocabulary import (
    Wrong,
    check,
    driver_job,
    expect,
    expect_few_bytes,
    expect_no_operations,
    expect_small_gap,
)

FUNCTION = "DiLoCo"
CLOSE = 1e-10
SIMULATED = "workers simulated in one process"
NO_OUTER_STEP, MEAN, EVERY_STEP, MOMENTUM, HALF = (
    "every 4, but 3 steps only",
    "every 4, SGD inside, outer rate 1, no momentum",
    "every 1, SGD inside, outer rate 1, no momentum",
    "every 3, AdamW inside, outer rate 0.7, momentum 0.9",
    "every 2, SGD inside, outer rate 0.5, no momentum",
)
RUNS = {  # inner optimizer, steps, every, outer rate, outer momentum
    NO_OUTER_STEP: ("SGD", 3, 4, 1.0, 0.0),
    MEAN: ("SGD", 12, 4, 1.0, 0.0),
    EVERY_STEP: ("SGD", 4, 1, 1.0, 0.0),
    MOMENTUM: ("AdamW", 12, 3, 0.7, 0.9),
    HALF: ("SGD", 4, 2, 0.5, 0.0),
}
JOBS = [driver_job(world, FUNCTION, RUNS, seconds=10.0, loads=("torch._dynamo",)) for world in (2, 3)]


@check("nothing happens between the outer steps")
def outer_steps_come_when_they_should(case, rank, result):
    every = RUNS[case.scenario][2]
    look_at = "after which steps of `inner` step() does something; building DiLoCo changes nothing"
    for step, report in enumerate(result["steps"][: every - 1], 1):
        subject, reference = f"after step {step} a weight of rank {rank}", "a worker without an outer step so far"
        expect_small_gap(report["gap"], CLOSE, subject, look_at, reference)
    if case.scenario == NO_OUTER_STEP:
        look_at = "what is sent between two outer steps, or when DiLoCo is built"
        expect_no_operations(rank, case.operations[rank], look_at)


@check(
    "with outer rate 1 an outer step leaves the mean; with one after every step, the workers are DDP",
    scenarios=[MEAN, EVERY_STEP],
)
def rate_1_gives_the_mean(case, rank, result):
    movement, mean = result["movement"], result["mean movement"]
    if not largest_gap(movement, mean) < CLOSE:
        factor = (movement @ mean / (mean @ mean)).item()
        parallel = largest_gap(movement, factor * mean) < CLOSE
        how = f"by {factor:.4g} times the mean movement" if parallel else "in another direction than the mean movement"
        raise Wrong(f"the first outer step moved the weights of rank {rank} {how}", where_to_look(factor, parallel))
    look_at = "the first outer step was right: when does the second one come, and which weights does it start from?"
    for step, report in enumerate(result["steps"], 1):
        expect_small_gap(report["gap"], CLOSE, f"after step {step} a weight of rank {rank}", look_at, SIMULATED)


@check("each worker's optimizer keeps what it has", scenarios=[MOMENTUM])
def the_inner_optimizer_keeps_its_state(case, rank, result):
    gap = result["steps"][RUNS[case.scenario][2] - 1]["state gap"]
    how = "is gone" if gap == math.inf else f"is {gap:.1e} away from that of its own steps"
    expect(
        gap < CLOSE,
        f"after the first outer step the state of AdamW on rank {rank} {how}",
        "what an outer step changes besides weights",
    )


@check("outer momentum lasts from one outer step to the next", scenarios=[MOMENTUM, HALF])
def the_outer_momentum_lasts(case, rank, result):
    every, unmoved = RUNS[case.scenario][2], result["unmoved"]
    expect(
        unmoved in (0, 4),
        f"the first outer step left {unmoved} of 4 parameters of rank {rank} as they were",
        "how many parameter groups the inner optimizer has",
    )
    for step, report in enumerate(result["steps"], 1):
        look_at = "rate and Nesterov momentum of the outer optimizer, and what it takes for the gradient"
        if step > every:
            look_at = "what has to last from one outer step to the next: the start of the movement, and momentum"
        expect_small_gap(report["gap"], CLOSE, f"after step {step} a weight of rank {rank}", look_at, SIMULATED)


@check("after an outer step all workers are equal to the last bit", scenarios=[MEAN, EVERY_STEP, MOMENTUM])
def the_workers_agree(case, rank, result):
    expect(
        torch.equal(result["weights"], case.results[0]["weights"]),
        f"after the last outer step the weights of rank {rank} differ from rank 0's by a rounding",
        "the order in which each rank adds up what the others sent",
    )


@check("each weight is sent once per outer step")
def each_weight_is_sent_once(case, rank, result):
    _, steps, every, _, _ = RUNS[case.scenario]
    size, outer_steps = 8 * len(result["weights"]), steps // every
    purpose = f" in {outer_steps} outer steps; its weights have {size:,}"
    look_at = "what the workers have already when they have the mean"
    expect_few_bytes(rank, case.operations[rank], outer_steps * size, purpose, look_at)


def where_to_look(factor, parallel):
    if not parallel:
        return "which weights the outer optimizer steps from: every worker has others before an outer step"
    if math.isclose(factor, 0, abs_tol=1e-9):
        return "what the global weights and the parameter hold when they are subtracted"
    if factor < 0:
        return "the sign: an optimizer subtracts its gradient"
    return "which weights the outer optimizer steps from, and whether the gradient is a mean or a sum"
