"""10.1: a time limit and a learning rate that each rank takes from its own clock; a detector, and the repair."""

import math

import torch

from ddp_course.grader.vocabulary import Mistake, Wrong, check, driver_job, expect, number, recognised

TRAIN, DETECTOR = "train", "first_difference"
MANY_DIGITS = "a limit of 40 seconds, and clocks with many digits"
CLOCKS = {  # by rank: (seconds at the start, seconds for each step). The time limit is 1 s, for MANY_DIGITS 40 s
    "equal clocks": [(0.0, 0.11)] * 4,
    "rank 0's clock is ahead": [(0.08, 0.11), (0.0, 0.11), (0.0, 0.11), (0.04, 0.11)],
    "rank 0's clock is behind": [(0.0, 0.1), (0.17, 0.1), (0.31, 0.1), (0.4, 0.1)],
    "the other clocks go faster": [(0.0, 0.07), (0.0, 0.2), (0.0, 0.15), (0.0, 0.3)],
    "the others' clocks go slower": [(0.0, 0.3), (0.0, 0.05), (0.0, 0.2), (0.0, 0.1)],
    "on rank 0 the time is over before the first step": [(1.5, 0.1), (0.0, 0.1), (0.0, 0.1), (0.0, 0.1)],
    "on rank 1 the time is over before the first step": [(0.0, 0.25), (2.0, 0.1), (0.5, 0.1), (0.0, 0.1)],
    MANY_DIGITS: [(1 / 7, 20 / 7), (1 / 3, 3.1), (0.0, 2.9), (2 / 3, 2.2)],
}


def rates_of(clock, limit=1.0):
    """The learning rates of a rank that reads this clock only, as in the given script."""
    start, pace, rates = *clock, []
    while (seconds := start + len(rates) * pace) < limit:
        rates.append(0.1 * (1 - seconds / limit))
    return rates


def weights_of(rates, world):
    """The final weights of one process with the samples of all ranks, after a step with each of these `rates`."""
    weights = torch.zeros(3, dtype=torch.float64)
    for rate in rates:
        weights = weights - rate * (weights - torch.arange(3.0, dtype=torch.float64) - (world - 1) / 2)
    return weights


RATES = [0.1, 0.08, 0.06]
MADE_UP = {  # the learning rates of each of 3 ranks
    "all equal": [RATES, RATES, RATES],
    "no rank made a step": [[], [], []],
    "rank 2 made one step more": [RATES, RATES, [*RATES, 0.04]],
    "rank 0 made one step more": [[*RATES, 0.04], RATES, RATES],
    "only rank 1 made steps": [[], RATES, []],
    "rank 1 differs in its second step": [RATES, [0.1, 0.079, 0.06], RATES],
    "rank 2 differs in the last digit": [RATES, RATES, [0.1, math.nextafter(0.08, 1), 0.06]],
    "rank 0 differs from the start": [[0.11, 0.08, 0.06], RATES, RATES],
    "ranks 1 and 2 agree, rank 0 does not": [[0.1, 0.08, 0.07], RATES, RATES],
    "rank 1 made one step more, with the learning rate 0": [RATES, [*RATES, 0.0], RATES],
    "apart twice: the first step counts": [[0.1, 0.07, 0.06], [0.1, 0.08], [0.1, 0.08, 0.06]],
    "the given script, rank 0's clock ahead": [rates_of(clock) for clock in CLOCKS["rank 0's clock is ahead"][:3]],
    "the given script, one clock for all": [rates_of(clock) for clock in CLOCKS["equal clocks"][:3]],
}


CALLS = {scenario: ("train", clocks, 40.0 if scenario == MANY_DIGITS else 1.0) for scenario, clocks in CLOCKS.items()}
REPAIRED = [driver_job(world, TRAIN, CALLS, seconds=2.0) for world in (2, 4, 1)]
DETECTOR_CALLS = {scenario: ("rates", rates) for scenario, rates in MADE_UP.items()}
DETECT = [driver_job(world, DETECTOR, DETECTOR_CALLS, seconds=2.0) for world in (3, 2)]
JOBS = REPAIRED + DETECT


@check("all ranks stop after the same step, when rank 0's clock says so, on 1, 2 and 4 ranks", REPAIRED)
def the_ranks_stop_after_the_same_step(case, rank, result):
    right = clock_rates(case, 0)
    expect(
        isinstance(result, list) and len(result) == 2 and isinstance(result[0], list),
        f"{TRAIN} returned {result!r} on rank {rank}; it should return (rates, weights)",
        "the line that returns",
    )
    steps = len(result[0])
    likeness = ", what its own clock allows" if rank and len(clock_rates(case, rank)) == steps else ""
    expect(
        steps == len(right),
        f"rank {rank} made {steps} steps{likeness}; rank 0's clock allows {len(right)}",
        "which rank decides that the time is over, and how the others receive that before their next step",
    )


@check("they use one learning rate, that of rank 0's clock, to twelve digits", REPAIRED)
def the_learning_rate_is_one(case, rank, result):
    _, clocks, limit = case.args[0]
    start, pace = clocks[rank]
    for step, (rate, right) in enumerate(zip(map(number, result[0]), clock_rates(case, 0), strict=True)):
        if not math.isclose(rate, right, rel_tol=1e-12, abs_tol=1e-15):
            mistakes = [
                Mistake("seven digits of it", right, "the dtype of what is sent, and what is lost on the way"),
                Mistake(
                    "that of its own clock",
                    0.1 * (1 - (start + step * pace) / limit),
                    "what else in the loop reads a clock",
                ),
                Mistake(
                    "that of rank 0's clock after this step",
                    0.1 * (1 - (clocks[0][0] + (step + 1) * clocks[0][1]) / limit),
                    "when rank 0's clock is read: before the step",
                ),
            ]
            words, look_at = recognised(rate, mistakes, "what the learning rate is made of, besides the seconds")
            raise Wrong(
                f"in step {step} rank {rank} used the learning rate {rate!r}{words}; by rank 0's clock it is "
                f"{right:.15g}",
                look_at,
            )


@check("the replicas are equal, and equal to one process with all samples", REPAIRED)
def the_replicas_are_one_process(case, rank, result):
    weights, rank_0_weights = result[1], case.results[0][1]
    right = weights_of(clock_rates(case, 0), case.world)
    expect(
        torch.is_tensor(weights) and weights.shape == right.shape,
        f"rank {rank} returned {weights!r} for weights",
        "the line that returns",
    )
    expect(
        torch.equal(weights, rank_0_weights),
        f"rank {rank} ended with weights {weights.tolist()}, rank 0 with {rank_0_weights.tolist()}",
        "what differs in the step of these two ranks",
    )
    expect(
        torch.allclose(weights, right, rtol=0, atol=1e-12),
        f"all ranks ended with weights {weights.tolist()}; one process with all samples and the same learning rates "
        f"gets {right.tolist()}",
        "the mean of the gradients: what is summed, in which dtype, and what it is divided by",
    )


@check(f"{DETECTOR} finds where ranks diverge, in {len(MADE_UP)} cases on 2 and 3 ranks", DETECT)
def the_detector_names_the_step(case, rank, result):
    by_rank = MADE_UP[case.scenario][: case.world]
    right = first_difference(by_rank)
    if number(result) != right or isinstance(result, bool):
        right_ranks = [r for r, other in enumerate(case.results) if number(other) == right]
        likeness = f", while rank {right_ranks[0]} is right" if right_ranks else ""
        shown = "; ".join(f"rank {r}: {rates}" for r, rates in enumerate(by_rank))
        raise Wrong(
            f"{DETECTOR} returned {result!r} on rank {rank}{likeness}; it should be {right!r} ({shown})",
            where_to_look(result, right, right_ranks),
        )


def clock_rates(case, rank):
    """The learning rates by this rank's clock."""
    _, clocks, limit = case.args[0]
    return rates_of(clocks[rank], limit)


def first_difference(rates):
    """The right return value of the learner's function of this name, from the lists of all ranks."""
    for step in range(max(map(len, rates))):
        if len({rank_rates[step] if step < len(rank_rates) else None for rank_rates in rates}) > 1:
            return step
    return None


def where_to_look(result, right, right_ranks):
    """Where to look after a wrong result of the detector."""
    if right_ranks:
        return "what each rank has of the lists of the others, when it decides"
    if right is None:
        return "these lists are equal: what does your function take for a difference?"
    if result is None:
        return "lists of different lengths, and numbers that differ in the last digit"
    return "the first step counts, from 0; a rank that has ended already differs from one that continues"
