"""20.2: an evaluation that leaves puzzles out and throws its sums away; a detector of wrong shares of a test set."""

import math
from collections import Counter

from ddp_course.grader.vocabulary import Wrong, check, driver_job, expect, expect_one_verdict, is_close, number, plural

from . import driver
from .driver import SOUND, UNSOUND

DETECTOR, REPAIRED = "is_sound", "evaluate"
CLOSE = 1e-9  # relative; the order of the sums shifts them by about 1e-16


def evaluations(world, *sizes):
    calls = {f"{plural(total, 'example')}, batches of {batch}": ("own", total, batch) for total, batch in sizes}
    return driver_job(world, REPAIRED, calls, seconds=3.0)


DETECT = [driver_job(1, DETECTOR, list(driver.VERSIONS), seconds=4.0)]
EVALUATE = [evaluations(2, (8, 4), (9, 7), (5, 4)), evaluations(4, (10, 16), (30, 7), (3, 2))]
JOBS = [*DETECT, *EVALUATE]


@check(f"the detector lets {len(SOUND)} sound ways to share pass", DETECT, begin="{scenario}: ")
def sound_shares_pass(case):
    expect_one_verdict(case, DETECTOR, "what its verdict depends on")
    expect(
        case.scenario not in SOUND or case.results[0],
        f"{DETECTOR} returned False, but every example is evaluated once, in equally many steps, none longer than "
        "ceil(batch / world)",
        "what your detector asks for beyond that: who gets which example is free, and a pair may be empty",
    )


@check(f"and sees {len(UNSOUND)} others, the given one among them", DETECT, begin="{scenario}: ")
def unsound_shares_are_caught(case):
    if case.scenario in UNSOUND and case.results[0]:
        raise Wrong(f"{DETECTOR} returned True, {fault(case.scenario)}", "which sizes it tries")


@check("your evaluation scores every example once, on 2 and 4 ranks, also where nothing divides", EVALUATE)
def every_example_is_scored_once(case):
    total = case.args[0][1]
    requests = [(rank, *request) for rank, result in enumerate(case.results) for request in result["requests"]]
    for rank, start, end in requests:
        expect(
            0 <= start <= end <= total,
            f"rank {rank} asked for {plural(end - start, 'example')}, from {start} to {end}; there are {total}",
            "both ends of a share have to be kept inside, the start too",
        )
    times = Counter(example for _, start, end in requests for example in range(start, end))
    for example in range(total):
        expect(
            times[example] == 1,
            f"example {example} was scored {times[example]} times; in all {times.total()} scores of {total} examples",
            "what a rank takes of a batch that the number of ranks does not divide, and of a short last one",
        )


@check("in equally many steps on all ranks, none too large", EVALUATE)
def the_ranks_keep_step(case, rank, result):
    longest = math.ceil(case.args[0][2] / case.world)
    steps, steps_of_rank_0 = len(result["requests"]), len(case.results[0]["requests"])
    expect(
        steps == steps_of_rank_0,
        f"rank {rank} called score {steps} times and rank 0 {steps_of_rank_0} times",
        "a rank without examples: a model that communicates in its forward pass waits for all ranks, so the rank "
        "makes its step with none",
    )
    for start, end in result["requests"]:
        expect(
            end - start <= longest,
            f"rank {rank} asked for {end - start} examples in one step; a rank has room for {longest}",
            "the size of a batch is that of the global batch: a rank takes at most ceil(batch / world) of it",
        )


@check("and every rank returns the exact metrics", EVALUATE)
def metrics_are_exact_on_every_rank(case, rank, result):
    losses, solved = driver.losses_and_solved(case.args[0][1])
    right = {"loss": losses.mean().item(), "accuracy": solved.double().mean().item(), "examples": len(losses)}
    metrics = result["returned"]
    expect(
        isinstance(metrics, dict) and set(metrics) == set(right),
        f"rank {rank} returned {metrics!r}, not loss, accuracy and examples",
        "what every rank has to return, not only rank 0",
    )
    for name, expected in right.items():
        value = number(metrics[name])
        expect(
            is_close(value, expected, CLOSE, CLOSE),
            f"rank {rank} returned the {name} {value!r}; over all examples it is {expected!r}",
            "the dtype of what is sent: torch.tensor makes float32 of a list of numbers"
            if is_close(value, expected, 1e-6, 1e-6)
            else "sums and counts are sent, and the division comes last; is the reduced tensor what is returned?",
        )


def fault(version):
    """The part of a sentence that names the smallest sizes with which this version of shares goes wrong."""
    shares = UNSOUND[version]
    sizes = [(total, batch, world) for world in range(2, 9) for batch in range(1, 20) for total in range(20)]
    for total, batch, world in sorted(sizes, key=sum):
        by_rank = [shares(total, batch, rank, world) for rank in range(world)]
        steps = [step for steps_of_rank in by_rank for step in steps_of_rank]
        evaluated = sorted(example for start, end in steps for example in range(start, end))
        valid = all(0 <= start <= end <= total for start, end in steps)
        small = all(end - start <= math.ceil(batch / world) for start, end in steps)
        equal_counts = len(set(map(len, by_rank))) == 1
        if not (valid and small and equal_counts and evaluated == list(range(total))):
            return f"but {plural(total, 'example')} in batches of {batch} on {world} ranks give {by_rank}"
    raise AssertionError(f"{version} is sound")
