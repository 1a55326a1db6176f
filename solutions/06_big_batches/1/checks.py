"""06.1: a flag that is set one line too late; a detector for replicas that differ for any reason."""

import torch

from ddp_course.grader.harness.tensors import largest_gap
from ddp_course.grader.vocabulary import Detector, by_pattern, called_once, check, driver_job, expect, expect_sent_once

from . import driver

DETECTOR, REPAIRED = "replicas_agree", "train"
RIGHT, BROKEN = tuple(driver.VERSIONS)[:5], tuple(driver.VERSIONS)[5:]
CLOSE = 1e-10  # float64: the order of the sums shifts the weights by about 1e-16
JOB_OPTIONS = {"seconds": 6.0, "loads": ("torch._dynamo",)}
DETECT = [driver_job(3, DETECTOR, [(what, torch.zeros(1)) for what in RIGHT + BROKEN], **JOB_OPTIONS)]
RUNS = {  # by the number of ranks: the steps, the micro-batches of each, and the optimizer
    2: [(1, 4, "SGD"), (2, 4, "SGD"), (3, 4, "SGD"), (3, 1, "SGD")],
    # AdamW is not linear: averaged weights are not those of the averaged gradient.
    4: [(3, 2, "SGD"), (3, 2, "AdamW")],
}
RUN_NAME = "{} step(s) of {} micro-batch(es), {}"
TRAIN = [
    driver_job(world, REPAIRED, {RUN_NAME.format(*run): ("own", *run) for run in runs}, **JOB_OPTIONS)
    for world, runs in RUNS.items()
]
JOBS = [*DETECT, *TRAIN]


detector = Detector(DETECTOR, RIGHT, BROKEN, DETECT)
DETECTOR_CHECKS = [
    detector.agrees("what a rank has from the others when it decides: an all-gather leaves the same on every rank"),
    detector.passes(
        ", but the weights are equal on all ranks",
        "what your detector compares: weights of different ranks, or something else? Is the module that it makes the "
        "same on all ranks before the training?",
        f"the detector lets {len(RIGHT)} correct loops pass",
    ),
    detector.catches(
        ", but that loop leaves other weights on another rank",
        by_pattern(
            {
                "ends": "how exactly are the weights compared, and are all of them compared on all ranks?",
                "first step": "how many steps does your detector train?",
                "": "what the ranks read, and how many micro-batches a step has: on equal data replicas stay equal",
            }
        ),
        f"and catches {len(BROKEN)} after which the replicas differ, that of the given script among them",
    ),
]


it_is_called_once = called_once(
    DETECTOR, "train", DETECT, "which weights it leaves on each rank: one call is enough to compare them"
)


@check("your loop equals one process on the global batch after 1, 2 and 3 steps, on 2 and 4 ranks", TRAIN)
def the_global_batch_is_learned(case):
    _, steps, accumulate, optimizer = case.args[0]
    right = driver.one_process(case.world, steps, accumulate, optimizer)
    gaps = [largest_gap(result, right) for result in case.results]
    rank = max(range(case.world), key=gaps.__getitem__)
    ranks_differ = not all(torch.equal(result, case.results[0]) for result in case.results)
    look_at = "the divisor of the loss, and when the gradients are set to zero"
    if ranks_differ:
        look_at = "is the flag set before the forward, and does the last micro-batch of the step communicate?"
    elif optimizer != "SGD":
        look_at = "with SGD it was right. What does each rank's optimizer make of the gradient that it is given?"
    expect(
        gaps[rank] < CLOSE,
        f"rank {rank} is {gaps[rank]:.1e} from one process on the global batch"
        f"{', and the ranks differ' if ranks_differ else '; the ranks agree with each other'}",
        look_at,
    )


@check("and its gradients travel once a step", TRAIN)
def gradients_are_sent_once_per_step(case, rank, result):
    expect_sent_once(case, rank, steps=case.args[0][1])
