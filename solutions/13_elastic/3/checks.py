"""13.3: SIGTERM reaches one rank, and all of them stop after the same step, with one checkpoint and one exit code."""

from dataclasses import replace

import torch

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.messages import assert_few_collectives
from ddp_course.grader.verdict import Wrong

FUNCTION, STEPS, STOPPED = "train", 8, 75
SIGNALS = {  # {rank: steps in which it is asked}, and the steps that all ranks make
    "nobody is asked": ({}, 8),
    "rank 1 is asked in step 3": ({1: [3]}, 4),
    "rank 0 is asked in step 3": ({0: [3]}, 4),
    "rank 1 is asked in the first step": ({1: [0]}, 1),
    "both are asked in step 2": ({0: [2], 1: [2]}, 3),
    "rank 0 is asked in step 5, rank 1 in step 2": ({0: [5], 1: [2]}, 3),
    "rank 1 is asked in the last step": ({1: [7]}, 8),
    "rank 1 is asked, and both once more while rank 0 saves": ({1: [4], "save": True}, 5),
    "both are asked while rank 0 saves at the end": ({"save": True}, 8),
}
OF_THREE = {
    "rank 2 is asked in step 3": ({2: [3]}, 4),
    "ranks 1 and 2 are asked, in steps 6 and 5": ({1: [6], 2: [5]}, 6),
}
OF_ONE = {"nobody is asked": ({}, 8), "rank 0 is asked in step 3": ({0: [3]}, 4)}
ALL = SIGNALS | OF_THREE


def job(world, runs):
    calls = tuple(Call([(STEPS, signals)] * world, given) for given, (signals, _) in runs.items())
    return Job(world, FUNCTION, calls, driver=True)


JOBS = [job(2, SIGNALS), job(3, OF_THREE), job(1, OF_ONE)]


def all_stop_after_the_same_step(records):
    """All ranks end the step in which the first of them was asked, and make no other."""
    for case in cases(records):
        right = list(range(ALL[case.given][1]))
        for rank, result in enumerate(case.results):
            if result["made"] != right:
                raise Wrong(
                    f"{case.where}rank {rank} made {len(result['made'])} steps, not {len(right)}",
                    "what all ranks know at the end of a step: whether any of them was asked in it",
                )
    return "all ranks stop after the step in which one of them was asked"


def rank_0_saves_once(records):
    """Rank 0 saves once, with the number of steps that were made and their weights, and no other rank saves."""
    for case in cases(records):
        steps = ALL[case.given][1]
        for rank, result in enumerate(case.results):
            if len(result["saves"]) != (rank == 0):
                raise Wrong(
                    f"{case.where}rank {rank} saved {len(result['saves'])} times",
                    "one checkpoint, by rank 0, of a run that was stopped as of one that is done",
                )
        [[number, weights, _]] = case.results[0]["saves"]
        if number != steps:
            raise Wrong(f"{case.where}the checkpoint says {number!r} steps; {steps} were made", "step + 1, or step?")
        if not torch.allclose(weights, weights_after(steps, case.world), rtol=1e-12):
            raise Wrong(
                f"{case.where}the weights in the checkpoint are {weights.tolist()}, not "
                f"{weights_after(steps, case.world).tolist()}",
                "the weights of all steps that were made, also of the last one",
            )
    return "rank 0 saves once, what was made"


def nobody_leaves_before_the_save(records):
    """No rank returns before rank 0 has saved: torchrun ends the others soon after the first has left."""
    for case in cases(records):
        [[_, _, saved]] = case.results[0]["saves"]
        for rank, result in enumerate(case.results):
            if result["returned"] < saved:
                raise Wrong(
                    f"{case.where}rank {rank} returned {1000 * (saved - result['returned']):.0f} ms before the "
                    "checkpoint was written",
                    "the ranks that do not save have to wait for the one that does",
                )
    return "nobody leaves before the checkpoint is written"


def the_exit_code_says_how_it_ended(records):
    """All ranks return 75 if steps are missing, and 0 if all were made, also if somebody had asked."""
    for case in cases(records):
        right = 0 if ALL[case.given][1] == STEPS else STOPPED
        for rank, result in enumerate(case.results):
            if result["code"] != right or isinstance(result["code"], bool):
                raise Wrong(
                    f"{case.where}rank {rank} returned {result['code']!r}, not {right}",
                    "are steps missing? That, and not the signal, is what a scheduler has to know, on every rank",
                )
    return "the exit code is 75 if steps are missing, else 0, on all ranks"


def little_is_sent(records):
    """At most two collectives per step and two at the end, with eight bytes per step besides the gradient."""
    for case in cases(records):
        steps = ALL[case.given][1]
        look = "one number per step says whether anybody was asked; at the end the others wait for rank 0's save"
        # Without the barrier of the driver, which no line of the answer has started.
        own = [[one for one in operations if one.line] for operations in case.operations]
        assert_few_collectives([replace(case, operations=own)], 2 * steps + 2, steps * (24 + 8) + 16, look)
    return "one number per step tells it"


CHECKS = [
    all_stop_after_the_same_step,
    rank_0_saves_once,
    nobody_leaves_before_the_save,
    the_exit_code_says_how_it_ended,
    little_is_sent,
]


def weights_after(steps, world):
    total = [1.0 * steps, sum(range(steps)), steps * (world - 1) / 2]
    return -0.1 * torch.tensor(total, dtype=torch.float64)
