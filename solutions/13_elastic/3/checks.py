"""13.3: SIGTERM reaches one rank, and all of them stop after the same step, with one checkpoint and one exit code."""

from dataclasses import replace

import torch

from ddp_course.grader.vocabulary import check, driver_job, expect, expect_few_operations

FUNCTION, STEPS, STOPPED = "train", 8, 75
# Each step has one or two all-reduces. A request after the last one of a step may count in the next step.
AFTER = {f"rank 1 is asked right after its {word} all-reduce": n for word, n in (("fifth", 5), ("sixth", 6))}
# On 2, 3 and 1 ranks: {rank: the steps in which it is asked to stop}, and how many steps all ranks make.
ON_2 = {
    "no rank is asked": ({}, 8),
    "rank 1 is asked in step 3": ({1: [3]}, 4),
    "rank 0 is asked in step 3": ({0: [3]}, 4),
    "rank 1 is asked in the first step": ({1: [0]}, 1),
    "both are asked in step 2": ({0: [2], 1: [2]}, 3),
    "rank 0 is asked in step 5, rank 1 in step 2": ({0: [5], 1: [2]}, 3),
    "rank 1 is asked in the last step": ({1: [7]}, 8),
    "rank 1 is asked, and both once more while rank 0 saves": ({1: [4], "save": True}, 5),
    "both are asked while rank 0 saves at the end": ({"save": True}, 8),
    **{scenario: ({"after": n}, None) for scenario, n in AFTER.items()},
}
ON_3 = {"rank 2 is asked in step 3": ({2: [3]}, 4), "ranks 1 and 2 are asked, in steps 6 and 5": ({1: [6], 2: [5]}, 6)}
ON_1 = {scenario: ON_2[scenario] for scenario in ("no rank is asked", "rank 0 is asked in step 3")}
ALL = ON_2 | ON_3
JOBS = [
    driver_job(world, FUNCTION, {scenario: (STEPS, signals) for scenario, (signals, _) in runs.items()})
    for world, runs in ((2, ON_2), (3, ON_3), (1, ON_1))
]


@check("all ranks stop after the step in which one of them was asked")
def all_stop_after_the_same_step(case, rank, result):
    steps = right_steps(case)
    expect(
        result["made"] == list(range(steps)),
        f"rank {rank} made {len(result['made'])} steps, not {steps}",
        "what all ranks know at the end of a step: whether any of them was asked in it",
    )


@check("rank 0 saves once, what was made")
def rank_0_saves_once(case):
    for rank, result in enumerate(case.results):
        expect(
            len(result["saves"]) == (rank == 0),
            f"rank {rank} saved {len(result['saves'])} times",
            "one checkpoint, by rank 0, whether the run was stopped or is done",
        )
    steps, [[number, weights, _]] = right_steps(case), case.results[0]["saves"]
    expect(number == steps, f"the checkpoint says {number!r} steps; {steps} were made", "step + 1, or step?")
    right = weights_after(steps, case.world)
    expect(
        torch.allclose(weights, right, rtol=1e-12),
        f"the weights in the checkpoint are {weights.tolist()}, not {right.tolist()}",
        "the weights of all steps that were made, also of the last one",
    )


@check("no rank returns before the checkpoint is written")
def no_rank_returns_before_the_save(case, rank, result):
    [[_, _, saved]] = case.results[0]["saves"]
    early = saved - result["returned"]
    expect(
        early <= 0,
        f"rank {rank} returned {1000 * early:.0f} ms before the checkpoint was written",
        "the ranks that do not save have to wait for the one that does",
    )


@check("the exit code is 75 if steps are missing, else 0, on all ranks")
def the_exit_code_says_how_it_ended(case, rank, result):
    right = 0 if right_steps(case) == STEPS else STOPPED
    expect(
        result["code"] == right and not isinstance(result["code"], bool),
        f"rank {rank} returned {result['code']!r}, not {right}",
        "are steps missing? That, and not the signal, is what a scheduler has to know, on every rank",
    )


@check("at most one more number is sent per step")
def little_is_sent(case):
    steps = right_steps(case)
    # Without the driver's barrier: no line of the answer started it.
    operations = [[operation for operation in on_rank if operation.line] for on_rank in case.operations]
    expect_few_operations(
        replace(case, operations=operations),
        2 * steps + 2,
        steps * (24 + 8) + 16,
        "one number per step says whether any rank was asked; at the end the others wait for rank 0's save",
    )


def right_steps(case):
    """How many steps all ranks have to make."""
    if case.scenario not in AFTER:
        return ALL[case.scenario][1]
    asked_in, *later = case.results[1]["reduced_in"] or [STEPS - 1]
    if asked_in in later:
        return asked_in + 1
    # Rank 1 may have been asked after the ranks had shared whether one of them was: then one more step is right.
    return min(max(len(case.results[0]["made"]), asked_in + 1), asked_in + 2, STEPS)


def weights_after(steps, world):
    """The right weights after `steps` steps in which each rank's gradient is [1, step, rank]."""
    total = [1.0 * steps, sum(range(steps)), steps * (world - 1) / 2]
    return -0.1 * torch.tensor(total, dtype=torch.float64)
