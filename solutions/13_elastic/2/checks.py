"""13.2: ranks with disks of their own resume from the newest step of which each has an intact checkpoint."""

import torch

from ddp_course.grader.vocabulary import check, driver_job, expect, show

from .driver import target

FUNCTION, STEPS, NEVER_STOPPED = "train", 14, "never stopped"
NEWEST_COMMON = "the newest step of which all ranks have an intact checkpoint; if there is none, step 0"


def torn(*steps):
    """The damage to a disk whose checkpoints after `steps` are cut off in the middle."""
    return [(step, "torn") for step in steps]


def lost(*steps):
    """The damage to a disk that lacks the checkpoints after `steps`."""
    return [(step, "lost") for step in steps]


# (the steps at which attempts are stopped, the damage to each rank's disk after each stop, the attempts' first steps)
RUNS = {
    NEVER_STOPPED: ([], [], [0]),
    "stopped before the first checkpoint": ([2], [{}], [0, 0]),
    "stopped after step 7": ([7], [{}], [0, 6]),
    "stopped right after a checkpoint": ([6], [{}], [0, 6]),
    "rank 1's newest is torn": ([10], [{1: torn(9)}], [0, 6]),
    "rank 0's newest is torn": ([10], [{0: torn(9)}], [0, 6]),
    "rank 0 had not written its newest": ([10], [{0: lost(9)}], [0, 6]),
    "rank 1 had not written its newest": ([10], [{1: lost(9)}], [0, 6]),
    "both are torn, each at another step": ([13], [{0: torn(12), 1: torn(3, 9)}], [0, 6]),
    "rank 1 lacks its last two, and an older one of rank 0 is torn": (
        [13],
        [{1: torn(12) + lost(9), 0: torn(6)}],
        [0, 3],
    ),
    "rank 0 has the newest alone, and rank 1 one that rank 0 lacks": ([13], [{0: torn(9), 1: lost(12)}], [0, 6]),
    "rank 1's newest is torn, and the one before it of rank 2": ([10], [{1: torn(9), 2: torn(6)}], [0, 3]),
    "a new machine takes over rank 1": ([11], [{1: lost(3, 6, 9)}], [0, 0]),
    "all of rank 0's are torn": ([11], [{0: torn(3, 6, 9)}], [0, 0]),
    "stopped twice": ([8, 11], [{}, {1: torn(9)}], [0, 6, 6]),
    "stopped twice, and the checkpoint that it resumed from is torn": ([8, 8], [{}, {1: torn(6)}], [0, 6, 3]),
    "stopped after the last checkpoint": ([13], [{}], [0, 12]),
}


def job(world):
    """The job of all runs, without those that damage the disk of a rank that there is not."""
    calls = {
        scenario: (f"run_{number}", STEPS, kills, damage)
        for number, (scenario, (kills, damage, _)) in enumerate(RUNS.items())
        if all(rank < world for disks in damage for rank in disks)
    }
    return driver_job(world, FUNCTION, calls)


JOBS = [job(world) for world in (2, 3, 1)]


@check(f"after {len(RUNS) - 1} kinds of stop, all ranks resume from the newest step that all have intact")
def all_ranks_resume_from_one_step(case, rank, result):
    kills, _, firsts = RUNS[case.scenario]
    first, *others = result["first_steps"] or [None]
    expect(
        not others,
        lambda: (
            f"rank 0 resumed from step {first}, "
            + ", ".join(f"rank {number} from step {step}" for number, step in enumerate(others, 1))
        ),
        NEWEST_COMMON,
    )
    right = [list(range(first, end)) for first, end in zip(firsts, [*kills, STEPS], strict=True)]
    for attempt, (steps, right_steps) in enumerate(zip(result["made"], right, strict=True)):
        expect(
            steps == right_steps,
            f"rank {rank} made the steps {as_range(steps)} in attempt {attempt}, not {as_range(right_steps)}",
            NEWEST_COMMON if attempt else "the first attempt makes all steps",
        )


@check("the arithmetic is that of the given script", scenarios=[NEVER_STOPPED])
def the_training_is_the_given_one(case):
    weights, right = case.results[0]["weights"], one_process_weights(case.world)
    expect(
        torch.allclose(weights, right, rtol=1e-12, atol=1e-12),
        f"the weights are {show(weights)}, not {show(right)}",
        "the arithmetic of a step and the learning rate of a run that is not stopped stay as they are",
    )


@check("and the weights are those of the run that never stopped, to the last bit")
def the_run_is_the_one_that_never_stopped(cases):
    never_stopped = cases[0].results[0]["weights"]
    for case in cases:
        for rank, result in enumerate(case.results):
            weights = result["weights"]
            expect(
                torch.is_tensor(weights) and torch.equal(weights, never_stopped),
                f"{case.where}rank {rank} ended with the weights {show(weights)}; the run that never stopped has "
                f"{show(never_stopped)}",
                "what a step depends on: weights, momentum, the rest of this rank, and the number of the step",
            )


def one_process_weights(world):
    """The weights of one process that computes the gradients of all ranks."""
    weights = momentum = torch.zeros(4, dtype=torch.float64)
    rests = torch.zeros(world, 4, dtype=torch.float64)
    for step in range(STEPS):
        exact = weights - torch.stack([target(rank, step) for rank in range(world)]) + rests
        sent = (8 * exact).round() / 8
        rests = exact - sent
        momentum = momentum / 2 + sent.mean(0)
        weights = weights - 0.1 * (1 - step / STEPS) * momentum
    return weights


def as_range(steps):
    """The steps as "0 to 5" if they are consecutive, else as a list."""
    return f"{steps[0]} to {steps[-1]}" if steps and steps == list(range(steps[0], steps[-1] + 1)) else str(steps)
