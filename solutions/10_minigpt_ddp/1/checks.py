"""10.1: a time limit and a learning rate that each rank takes from its own clock; a detector, and the repair."""

import math

import torch

from ddp_course.grader.vocabulary import Mistake, Wrong, check, driver_job, expect, number, recognised

TRAIN, DETECTOR = "train", "first_difference"
LIMITS = {"a limit of 40 seconds, and clocks with many digits": 40.0}
CLOCKS = {  # (start, pace) by rank
    "equal clocks": [(0.0, 0.11)] * 4,
    "rank 0's clock is ahead": [(0.08, 0.11), (0.0, 0.11), (0.0, 0.11), (0.04, 0.11)],
    "rank 0's clock is behind": [(0.0, 0.1), (0.17, 0.1), (0.31, 0.1), (0.4, 0.1)],
    "the other clocks go faster": [(0.0, 0.07), (0.0, 0.2), (0.0, 0.15), (0.0, 0.3)],
    "the others' clocks go slower": [(0.0, 0.3), (0.0, 0.05), (0.0, 0.2), (0.0, 0.1)],
    "on rank 0 the time is over before the first step": [(1.5, 0.1), (0.0, 0.1), (0.0, 0.1), (0.0, 0.1)],
    "on rank 1 the time is over before the first step": [(0.0, 0.25), (2.0, 0.1), (0.5, 0.1), (0.0, 0.1)],
    "a limit of 40 seconds, and clocks with many digits": [(1 / 7, 20 / 7), (1 / 3, 3.1), (0.0, 2.9), (2 / 3, 2.2)],
}


def limit_of(scenario):
    """The seconds that these clocks have to reach."""
    return LIMITS.get(scenario, 1.0)


def rates_of(clock, limit=1.0):
    """The learning rates of a rank that looks at this clock alone, as in the given script."""
    start, pace, rates = *clock, []
    while (seconds := start + len(rates) * pace) < limit:
        rates.append(0.1 * (1 - seconds / limit))
    return rates


def weights_of(rates, world):
    """Where one process gets that has all ranks' samples and takes these learning rates."""
    weights = torch.zeros(3, dtype=torch.float64)
    for rate in rates:
        weights = weights - rate * (weights - torch.arange(3.0, dtype=torch.float64) - (world - 1) / 2)
    return weights


def trained(world):
    calls = {scenario: ("train", clocks, limit_of(scenario)) for scenario, clocks in CLOCKS.items()}
    return driver_job(world, TRAIN, calls, seconds=2.0)


A = [0.1, 0.08, 0.06]
MADE_UP = {  # by rank, for 3 ranks
    "all equal": [A, A, A],
    "nobody made a step": [[], [], []],
    "rank 2 made one step more": [A, A, [*A, 0.04]],
    "rank 0 made one step more": [[*A, 0.04], A, A],
    "only rank 1 made steps": [[], A, []],
    "rank 1 differs in its second step": [A, [0.1, 0.079, 0.06], A],
    "rank 2 differs in the last digit": [A, A, [0.1, math.nextafter(0.08, 1), 0.06]],
    "rank 0 differs from the start": [[0.11, 0.08, 0.06], A, A],
    "ranks 1 and 2 agree, rank 0 does not": [[0.1, 0.08, 0.07], A, A],
    "rank 1 made one step more, with the learning rate 0": [A, [*A, 0.0], A],
    "apart twice: the first step counts": [[0.1, 0.07, 0.06], [0.1, 0.08], [0.1, 0.08, 0.06]],
    "the given script, rank 0's clock ahead": [rates_of(clock) for clock in CLOCKS["rank 0's clock is ahead"][:3]],
    "the given script, one clock for all": [rates_of(clock) for clock in CLOCKS["equal clocks"][:3]],
}


REPAIRED = [trained(2), trained(4), trained(1)]
RATES = {scenario: ("rates", rates) for scenario, rates in MADE_UP.items()}
DETECT = [driver_job(world, DETECTOR, RATES, seconds=2.0) for world in (3, 2)]
JOBS = REPAIRED + DETECT


@check("all ranks stop after the same step, when rank 0's clock says so, on 1, 2 and 4 ranks", REPAIRED)
def the_ranks_stop_after_the_same_step(case, rank, result):
    right = own_rates(case, 0)
    expect(
        isinstance(result, list) and len(result) == 2 and isinstance(result[0], list),
        f"{TRAIN} returned {result!r} on rank {rank}; it should return (rates, weights)",
        "the line that returns",
    )
    steps = len(result[0])
    like = ", what its own clock allows" if rank and len(own_rates(case, rank)) == steps else ""
    expect(
        steps == len(right),
        f"rank {rank} made {steps} steps{like}; rank 0's clock allows {len(right)}",
        "who decides that the time is over, and how the others hear of it before their next step",
    )


@check("they use one learning rate, that of rank 0's clock, to the last digit", REPAIRED)
def the_learning_rate_is_one(case, rank, result):
    (start, pace), limit = CLOCKS[case.scenario][rank], limit_of(case.scenario)
    for step, (rate, wanted) in enumerate(zip(map(number, result[0]), own_rates(case, 0), strict=True)):
        if not math.isclose(rate, wanted, rel_tol=1e-12, abs_tol=1e-15):
            mistakes = [
                Mistake("seven digits of it", wanted, "the dtype of what is sent, and what is lost on the way"),
                Mistake(
                    "that of its own clock",
                    0.1 * (1 - (start + step * pace) / limit),
                    "what else in the loop reads a clock",
                ),
            ]
            words, look_at = recognised(rate, mistakes, "what the learning rate is made of, besides the seconds")
            raise Wrong(
                f"in step {step} rank {rank} used the learning rate {rate!r}{words}; by rank 0's clock it is "
                f"{wanted!r}",
                look_at,
            )


@check("the replicas are equal, and equal to one process with all samples", REPAIRED)
def the_replicas_are_one_process(case, rank, result):
    weights, first, right = result[1], case.results[0][1], weights_of(own_rates(case, 0), case.world)
    expect(
        torch.is_tensor(weights) and weights.shape == right.shape,
        f"rank {rank} returned {weights!r} for weights",
        "the line that returns",
    )
    expect(
        torch.equal(weights, first),
        f"rank {rank} ended with weights {weights.tolist()}, rank 0 with {first.tolist()}",
        "what differs in the step of these two ranks",
    )
    expect(
        torch.allclose(weights, right, rtol=0, atol=1e-12),
        f"all ranks ended with weights {weights.tolist()}; one process with all samples and the same learning rates "
        f"gets {right.tolist()}",
        "the mean of the gradients: what is summed, and what it is divided by",
    )


@check(f"{DETECTOR} finds where ranks part, in {len(MADE_UP)} cases on 2 and 3 ranks", DETECT)
def the_detector_names_the_step(case, rank, result):
    by_rank = MADE_UP[case.scenario][: case.world]
    right = first_difference(by_rank)
    if number(result) != right or isinstance(result, bool):
        others = [r for r, other in enumerate(case.results) if number(other) == right]
        like = f", while rank {others[0]} is right" if others else ""
        shown = "; ".join(f"rank {r}: {rates}" for r, rates in enumerate(by_rank))
        raise Wrong(
            f"{DETECTOR} returned {result!r} on rank {rank}{like}; it should be {right!r} ({shown})",
            look_at(result, right, others),
        )


def own_rates(case, rank):
    """The learning rates by this rank's clock alone."""
    return rates_of(CLOCKS[case.scenario][rank], limit_of(case.scenario))


def first_difference(rates):
    """The right return value of the learner's function of this name, from the lists of all ranks."""
    for step in range(max(map(len, rates))):
        if len({own[step] if step < len(own) else None for own in rates}) > 1:
            return step
    return None


def look_at(result, right, others):
    if others:
        return "what each rank knows of the lists of the others, when it decides"
    if right is None:
        return "these lists are equal: what does your function take for a difference?"
    if result is None:
        return "lists of different lengths, and numbers that differ in the last digit"
    return "the first step counts, from 0; a rank that has ended already differs from one that goes on"
