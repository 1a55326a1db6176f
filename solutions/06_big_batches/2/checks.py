"""06.2: micro-batches that are left over at the end of an epoch; a detector that measures the size of every step."""

import math

import torch

from ddp_course.grader.harness.tensors import largest_gap
from ddp_course.grader.vocabulary import are_close, called_once, check, driver_job, expect, expect_sent_once

from . import driver

DETECTOR, REPAIRED = "step_sizes", "train"
CLOSE = 1e-10  # float64: the order of the sums shifts the numbers by about 1e-16
JOB_OPTIONS = {"seconds": 6.0, "loads": ("torch._dynamo",)}
RUNS = {  # by the number of ranks: the micro-batches of each epoch and of a step, and the optimizer
    2: [([5, 5, 5], 2, "SGD"), ([1, 1], 4, "SGD"), ([6, 7], 3, "SGD"), ([3], 1, "SGD")],
    # AdamW is not linear: neither averaged weights nor another learning rate are as good as the right gradient. And a
    # step without a micro-batch, after an epoch without a rest, moves the weights by its averages.
    3: [([7, 7], 4, "SGD"), ([8, 7], 4, "AdamW")],
}
DETECTOR_CALLS = [(what, *sizes, torch.zeros(1)) for sizes in ((2, 5, 2), (3, 7, 3)) for what in driver.VERSIONS]
DETECT = [driver_job(1, DETECTOR, DETECTOR_CALLS, **JOB_OPTIONS)]
RUN_NAME = "epochs of {} micro-batches, {} a step, {}"
TRAIN = [
    driver_job(world, REPAIRED, {RUN_NAME.format(*run): ("own", *run) for run in runs}, **JOB_OPTIONS)
    for world, runs in RUNS.items()
]
JOBS = [*DETECT, *TRAIN]


def shown(sizes):
    if isinstance(sizes, list) and all(isinstance(size, int | float) for size in sizes):
        return f"[{', '.join(f'{size:g}' for size in sizes)}]"
    return repr(sizes)[:80]


@check(
    f"the detector weighs the steps of {len(driver.VERSIONS)} loops right; of the second script: "
    f"{shown(driver.VERSIONS['adds the rest to the next epoch'].sizes(2, 5, 2))}",
    DETECT,
)
def the_sizes_are_read_right(case, rank, result):
    what, epochs, micro_batches, accumulate, _ = case.args[0]
    right = driver.VERSIONS[what].sizes(epochs, micro_batches, accumulate)
    expect(
        isinstance(result, list) and are_close(result, right, rel_tol=0, abs_tol=1e-4),
        f"{DETECTOR}(train, {epochs}, {micro_batches}, {accumulate}) returned {shown(result)} on rank {rank}, not "
        f"{shown(right)}",
        where_to_look(result, right, int(case.tensors_after[rank][-1])),
    )


it_is_called_once = called_once(
    DETECTOR, "train", DETECT, "what can be noted while it runs: one call makes all epochs and all steps"
)


@check("your loop uses every micro-batch once, at its weight, on 2 and 3 ranks, also in an epoch of one", TRAIN)
def every_micro_batch_counts_once(case):
    _, counts, accumulate, optimizer = case.args[0]
    right = driver.one_process(case.world, counts, accumulate, optimizer)
    gaps = [largest_gap(result, right) for result in case.results]
    rank = max(range(case.world), key=gaps.__getitem__)
    expect(
        gaps[rank] < CLOSE,
        lambda: f"rank {rank} is {gaps[rank]:.1e} from one process on the global batches{likeness(case)}",
        "the micro-batches of the last step of an epoch: how many are there, what is their sum divided by, and which "
        "of them communicates?"
        if optimizer == "SGD"
        else "with SGD it was right: which gradient does AdamW get in each step, and are there steps without one?",
    )


@check("and its gradients travel once a step", TRAIN)
def gradients_are_sent_once_per_step(case, rank, result):
    _, counts, accumulate, _ = case.args[0]
    expect_sent_once(case, rank, steps=sum(math.ceil(count / accumulate) for count in counts))


def where_to_look(result, right, calls):
    """Where to look if the detector returned `result` instead of `right`; `calls`: how often it called train."""
    if not isinstance(result, list):
        return "the return value: a list of numbers, one for each step of the optimizer"
    if calls != 1:
        return f"how often train is called: {calls} times here; one call is handed all epochs"
    if len(result) != len(right):
        return "an entry for each step of the optimizer, in the order of the steps, and no more"
    return (
        "what is noted, and when: the gradient's value as the optimizer is about to use it, which zero_grad may clear"
    )


def likeness(case):
    """The end of a message about wrong weights: which known loop gives them, or that the ranks differ; or ""."""
    for what, loop in driver.VERSIONS.items():
        weights = driver.one_process(case.world, *case.args[0][1:], loop)
        if all(largest_gap(result, weights) < CLOSE for result in case.results):
            return f"; they are the weights of this loop: {what}"
    if not all(torch.equal(result, case.results[0]) for result in case.results):
        return ", and the ranks differ from each other"
    return ""
