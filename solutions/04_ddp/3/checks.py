"""04.3: the loss falls on every rank, but no gradients are averaged: a detector of unequal replicas, and the fix."""

import re

from ddp_course.grader.vocabulary import Wrong, are_close, by_pattern, check, driver_job, expect, show

from .driver import CASES

DETECTOR, REPAIRED = "assert_replicas_equal", "train"
DIFFERENT = [scenario for scenario, (_, first_difference) in CASES.items() if first_difference]
EQUAL = [scenario for scenario in CASES if scenario not in DIFFERENT]
SCENARIOS = {2: [EQUAL[0], *DIFFERENT[:3]], 3: [*EQUAL, *DIFFERENT], 1: EQUAL[:1]}  # by the number of ranks
NAMES = ("backbone.weight", "backbone.bias", "head.weight", "head.bias")
TOLERANCE = 1e-9  # float64 sums in another order
STEPS = {"1 step": (1,), "6 steps": (6,)}
DETECTIONS = [driver_job(world, DETECTOR, scenarios) for world, scenarios in SCENARIOS.items()]
TRAININGS = [driver_job(world, REPAIRED, STEPS, loads=("torch._dynamo",)) for world in (2, 3)]  # for DDP, torch.optim
JOBS = DETECTIONS + TRAININGS


@check("equal replicas pass, on 1, 2 and 3 ranks", DETECTIONS, scenarios=EQUAL)
def equal_replicas_pass(case, rank, result):
    if result["raised"]:
        name, text = result["raised"]
        raise Wrong(f"{DETECTOR} raised on rank {rank}: {name}: {text[:150]}", why_equal_replicas_raise(case.scenario))


@check(
    lambda cases: f"{len(DIFFERENT)} kinds of difference raise, on every rank",
    DETECTIONS,
    scenarios=DIFFERENT,
    begin="different: {scenario}; ",
)
def different_replicas_raise_everywhere(case):
    silent_ranks = [rank for rank, result in enumerate(case.results) if not result["raised"]]
    if not silent_ranks:
        return
    begin = f"with {case.world} ranks {DETECTOR} raised on"
    expect(len(silent_ranks) < case.world, f"{begin} no rank", where_to_look(case.scenario))
    raise Wrong(
        f"{begin} {case.world - len(silent_ranks)} of them, not on rank {silent_ranks[0]}",
        "a rank that does not raise continues and waits for one that has: how do all ranks learn what one found?",
    )


@check(
    "the message names the first tensor and the first rank that differ",
    DETECTIONS,
    scenarios=DIFFERENT,
    begin="different: {scenario}; ",
)
def the_first_difference_is_named(case, rank, result):
    _, (name, different_rank) = CASES[case.scenario]
    different_rank %= case.world  # -1 is the last rank
    error, text = result["raised"]
    named = [parameter for parameter in NAMES if re.search(rf"\b{parameter}\b", text)]
    expect(
        name in named and re.search(rf"\branks?[ =:\[]*{different_rank}\b", text, re.IGNORECASE),
        f"rank {rank} raised {error}: {text[:150]!r}; it should name {name} and rank {different_rank}",
        "the order: the parameters in the order of named_parameters, and for each one the ranks from 0 on",
    )
    equal = [parameter for parameter in named if parameter not in case.scenario]
    expect(
        not equal or "trained alone" in case.scenario,
        lambda: f"the message on rank {rank} also names {equal[0]}, which is equal",
        "which parameters the message should name",
    )


@check("it leaves the replicas as they are", DETECTIONS, begin="different: {scenario}; ")
def looking_changes_nothing(case, rank, result):
    for name in result["changed"]:
        raise Wrong(
            f"{DETECTOR} has changed {name} on rank {rank}",
            "what is broadcast or reduced: the model's own tensors, or copies",
        )


@check("after your train all replicas are equal to the last bit", TRAININGS)
def replicas_stay_equal(case, rank, result):
    for name, bits in result["bits"].items():
        expect(
            bits == case.results[0]["bits"][name],
            f"after your {REPAIRED} {name} on rank {rank} is not rank 0's",
            "in which line does a rank receive another rank's gradient, and is it reached in every step?",
        )


@check(
    lambda gaps: (
        f"2 and 3 ranks equal one process on the global batches after 1 and 6 steps, largest gap {max(gaps):.0e}"
    ),
    TRAININGS,
)
def equals_one_process(case):
    for rank, result in enumerate(case.results):
        for name, gap in result["gaps"].items():
            expect(
                gap < TOLERANCE,
                f"after your {REPAIRED} {name} is {gap:.2g} from that of one process on the global batches, on rank "
                f"{rank}",
                "replicas can be equal and wrong: does each step use the mean of all ranks' gradients, and no other?",
            )
    for rank, result in enumerate(case.results):
        expect(
            any(
                are_close(result["losses"], right, rel_tol=0, abs_tol=TOLERANCE)
                for right in (result["local_losses"], result["global_losses"])
            ),
            f"your {REPAIRED} returned {show(result['losses'])} on rank {rank}; before each step the loss of this "
            f"rank's batch was {show(result['local_losses'])}",
            "the docstring of train: how many losses does it return, and when are they computed?",
        )
    return max(gap for result in case.results for gap in result["gaps"].values())


why_equal_replicas_raise = by_pattern(
    {
        "NaN": "what your detector takes for a difference: a NaN is unequal to itself as a number; its bits are equal",
        "bfloat16": "which of your lines works for some dtypes only, or for some numbers of elements",
        "": "what your detector takes for a difference",
    }
)
where_to_look = by_pattern(
    {
        "NaN": "comparisons with NaN are false, also the one that asks whether a gap is too large",
        "swapped|below": "can two different tensors have the same sum, or the ranks the same mean?",
        "-0.0": "which two floats are equal by `==` although their bits differ?",
        "1e-12": "how large a gap is allowed: replicas of one training are equal to the last bit",
        "": "which parameters you compare, and of which ranks",
    }
)
