"""20.2: an evaluation that loses puzzles, counts below zero and throws its sums away; a detector for how it shares."""

import math

import torch

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import check, expect, expect_one_verdict, number

from . import driver

DETECTOR, REPAIRED = "is_sound", "evaluate"
SOUND = tuple(driver.VERSIONS)[:4]
UNSOUND = tuple(driver.VERSIONS)[4:]
CLOSE = 1e-9  # relative; the order of the sums shifts them by about 1e-16


def examples(count):
    return f"{count} example{'s' * (count != 1)}"


def evaluations(world, *sizes):
    calls = tuple(
        Call([("own", total, batch)] * world, f"{examples(total)}, batches of {batch}") for total, batch in sizes
    )
    return Job(world, REPAIRED, calls, seconds=3.0, driver=True)


DETECT = [Job(1, DETECTOR, tuple(Call([(what,)], what) for what in SOUND + UNSOUND), seconds=4.0, driver=True)]
EVALUATE = [evaluations(2, (8, 4), (9, 7), (5, 4)), evaluations(4, (10, 16), (30, 7), (3, 2))]
JOBS = [*DETECT, *EVALUATE]


@check(f"the detector lets {len(SOUND)} sound ways to share pass", DETECT, begin="{given}: ")
def sound_shares_pass(case):
    expect_one_verdict(case, DETECTOR, "what its verdict depends on")
    expect(
        case.given not in SOUND or case.results[0],
        f"{DETECTOR} returned False, but every example is evaluated once, in equally many steps, none longer than "
        "ceil(batch / world)",
        "what your detector asks for beyond that: who gets which example is free, and a pair may be empty",
    )


@check(f"and sees {len(UNSOUND)} others, the given one among them", DETECT, begin="{given}: ")
def unsound_shares_are_seen(case):
    if case.given in UNSOUND and case.results[0]:
        raise Wrong(f"{DETECTOR} returned True, {fault(case.given)}", "which sizes it tries")


def every_example_is_scored_once(records):
    """evaluate asks score for each example once, on one rank, and never for an end before its start."""
    for case in cases(records[len(DETECT) :]):
        total = case.args[0][1]
        asked = [(rank, start, end) for rank, one in enumerate(case.results) for start, end in one["asked"]]
        for rank, start, end in asked:
            if not 0 <= start <= end <= total:
                raise Wrong(
                    f"{case.where}rank {rank} asked for the examples {start} to {end}: that is {end - start}",
                    "both ends of a share have to be kept inside, the start too",
                )
        times = torch.zeros(total, dtype=torch.int64)
        for _, start, end in asked:
            times[start:end] += 1
        if (times != 1).any():
            example = int((times != 1).nonzero()[0])
            raise Wrong(
                f"{case.where}example {example} was scored {int(times[example])} times, all of them together "
                f"{int(times.sum())} times",
                "what a rank takes of a batch that the number of ranks does not divide, and of a short last one",
            )
    return "your evaluation scores every example once, on 2 and 4 ranks, also where nothing divides"


def the_ranks_keep_step(records):
    """All ranks make the same number of steps, and none is longer than ceil(batch / world)."""
    for case in cases(records[len(DETECT) :]):
        _, _, batch = case.args[0]
        steps, longest = [len(one["asked"]) for one in case.results], -(-batch // case.world)
        for rank, one in enumerate(case.results):
            if steps[rank] != steps[0]:
                raise Wrong(
                    f"{case.where}rank {rank} called score {steps[rank]} times and rank 0 {steps[0]} times",
                    "a rank without examples: a model that talks in its forward pass waits for all ranks, so the "
                    "rank makes its step with none",
                )
            for start, end in one["asked"]:
                if end - start > longest:
                    raise Wrong(
                        f"{case.where}rank {rank} asked for {end - start} examples in one step; a rank has room for "
                        f"{longest}",
                        "the batch is for all ranks together: ceil(batch / world) of it is a rank's",
                    )
    return "in equally many steps on all ranks, none too large"


def metrics_are_exact_on_every_rank(records):
    """Every rank returns the mean loss, the accuracy and the number over all examples."""
    for case in cases(records[len(DETECT) :]):
        losses, solved = driver.losses_and_solved(case.args[0][1])
        right = {"loss": losses.mean().item(), "accuracy": solved.double().mean().item(), "examples": len(losses)}
        for rank, result in enumerate(case.results):
            found = result["returned"]
            if not isinstance(found, dict) or set(found) != set(right):
                raise Wrong(
                    f"{case.where}rank {rank} returned {found!r}, not loss, accuracy and examples",
                    "what every rank has to return, not rank 0 alone",
                )
            for name, wanted in right.items():
                value = number(found[name])
                if not (isinstance(value, int | float) and math.isclose(value, wanted, rel_tol=CLOSE, abs_tol=CLOSE)):
                    raise Wrong(
                        f"{case.where}rank {rank} returned the {name} {value!r}; over all examples it is {wanted!r}",
                        "sums and counts travel, and the division comes last; is the reduced tensor what is returned?",
                    )
    return "and every rank returns the exact metrics"


CHECKS = [
    sound_shares_pass,
    unsound_shares_are_seen,
    every_example_is_scored_once,
    the_ranks_keep_step,
    metrics_are_exact_on_every_rank,
]


def fault(what):
    """The smallest sizes with which this version goes wrong, in a sentence."""
    shares = driver.VERSIONS[what]
    for size in range(1, 30):
        for total, batch, world in sizes_up_to(size):
            pairs = [shares(total, batch, rank, world) for rank in range(world)]
            shared = sorted(i for one in pairs for start, end in one for i in range(start, end))
            valid = all(0 <= start <= end <= total for one in pairs for start, end in one)
            short = all(end - start <= -(-batch // world) for one in pairs for start, end in one)
            even = len({len(one) for one in pairs}) == 1
            if not (valid and short and even and shared == list(range(total))):
                return f"but {examples(total)} in batches of {batch} on {world} ranks give {pairs}"
    raise AssertionError(f"{what} is sound")


def sizes_up_to(size):
    """(total, batch, world) whose sum is `size`, on at least two ranks."""
    return [
        (size - batch - world, batch, world)
        for world in range(2, size)
        for batch in range(1, size - world + 1)
        if size - batch - world >= 0
    ]
