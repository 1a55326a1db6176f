"""06.2: micro-batches that are left over at the end of an epoch; a detector that weighs every update."""

import torch

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import called_once, numbers

from . import driver

DETECTOR, REPAIRED = "update_sizes", "train"
CLOSE = 1e-10  # float64: the order of the sums shifts the numbers by about 1e-16
SMALL = 64  # bytes an update that are not gradients


def job(world, function, *arguments):
    calls = tuple(Call([one] * world, str(one[0])) for one in arguments)
    return Job(world, function, calls, seconds=6.0, driver=True, loads=("torch._dynamo",))


WHATS = tuple(driver.VERSIONS)
DETECT = [job(1, DETECTOR, *((what, *sizes, torch.zeros(1)) for sizes in ((2, 5, 2), (3, 7, 3)) for what in WHATS))]
TRAIN = [
    job(2, REPAIRED, *(("own", *sizes, "SGD") for sizes in (([5, 5, 5], 2), ([1, 1], 4), ([6, 7], 3), ([3], 1)))),
    # AdamW is not linear: neither averaged weights nor another learning rate are as good as the right gradient.
    job(3, REPAIRED, ("own", [7, 7], 4, "SGD"), ("own", [7, 7], 4, "AdamW")),
]
JOBS = [*DETECT, *TRAIN]


def the_sizes_are_read_right(records):
    """The detector returns the size of every update, in order, on every rank."""
    for case in cases(records[: len(DETECT)]):
        what, epochs, micro_batches, accumulate, _ = case.args[0]
        right = driver.VERSIONS[what].sizes(epochs, micro_batches, accumulate)
        for rank, result in enumerate(case.results):
            if not same(result, right):
                raise Wrong(
                    f"{case.where}{DETECTOR}(train, {epochs}, {micro_batches}, {accumulate}) returned "
                    f"{shown(result)} on rank {rank}, not {shown(right)}",
                    where_to_look(result, right, int(case.after[rank][-1])),
                )
    carried = driver.VERSIONS["adds the rest to the next epoch"].sizes(2, 5, 2)
    return f"the detector weighs the updates of {len(WHATS)} loops right; of the second script: {shown(carried)}"


def every_micro_batch_counts_once(records):
    """Each micro-batch is in one update of its own epoch, and an update is the mean over its micro-batches."""
    for case in cases(records[len(DETECT) :]):
        _, counts, accumulate, optimizer = case.args[0]
        right = driver.alone(case.world, counts, accumulate, optimizer)
        gaps = [(result - right).abs().max().item() for result in case.results]
        rank = max(range(case.world), key=lambda one: gaps[one])
        if not gaps[rank] < CLOSE:
            raise Wrong(
                f"{told(case)}rank {rank} is {gaps[rank]:.1e} from one process on the global batches{likeness(case)}",
                "the micro-batches of the last update of an epoch: how many are there, what is their sum divided by, "
                "and which of them talks?"
                if optimizer == "SGD"
                else "with SGD it was right. What does each rank's optimizer make of the gradient that it is given?",
            )
    return "your loop uses every micro-batch once, at its weight, on 2 and 3 ranks, also in an epoch of one"


def gradients_travel_once_an_update(records):
    """A rank hands each gradient over once an update, not once a micro-batch."""
    size = driver.weights(driver.Model()).numel() * 8
    for case in cases(records[len(DETECT) :]):
        _, counts, accumulate, _ = case.args[0]
        updates = sum(-(-count // accumulate) for count in counts)
        for rank, mine in enumerate(case.operations):
            sent = sum(one.bytes for one in mine if one.op != "broadcast")
            if case.world > 1 and sent > updates * (size + SMALL):
                raise Wrong(
                    f"{told(case)}rank {rank} handed over {sent:,} bytes in {updates} updates; the gradients have "
                    f"{size:,}",
                    "which micro-batches communicate, and how often? Once is enough, in the last of an update",
                )
    return "and its gradients travel once an update"


it_is_called_once = called_once(
    "it_is_called_once",
    DETECTOR,
    "train",
    DETECT,
    "what can be noted while it runs: one call makes all epochs and all updates",
)


CHECKS = [the_sizes_are_read_right, it_is_called_once, every_micro_batch_counts_once, gradients_travel_once_an_update]


def told(case):
    _, counts, accumulate, optimizer = case.args[0]
    epochs = f"epochs of {' and '.join(map(str, counts))} micro-batches"
    return f"with {case.world} ranks, {epochs}, {accumulate} an update, {optimizer}: "


def same(result, right):
    found = numbers(result) if isinstance(result, list) else None
    return (
        found is not None
        and len(found) == len(right)
        and all(abs(a - b) < 1e-4 for a, b in zip(found, right, strict=True))
    )


def shown(result):
    if isinstance(result, list) and all(isinstance(one, int | float) for one in result):
        return f"[{', '.join(f'{one:g}' for one in result)}]"
    return repr(result)[:80]


def where_to_look(result, right, calls):
    if not isinstance(result, list):
        return "the return value: a list of numbers, one for each step of the optimizer"
    if calls != 1:
        return f"how often train is called: {calls} times here; one call is handed all epochs"
    if len(result) != len(right):
        return "an entry for each step of the optimizer, in the order of the steps, and no more"
    return "what is noted, and when: the size is the gradient that the optimizer is about to use"


def likeness(case):
    """What a wrong result looks like, in words that can be put behind it."""
    for what, way in driver.VERSIONS.items():
        other = driver.alone(case.world, *case.args[0][1:], way)
        if all((result - other).abs().max() < CLOSE for result in case.results):
            return f"; they are the weights of this loop: {what}"
    if not all(torch.equal(result, case.results[0]) for result in case.results):
        return ", and the ranks differ from each other"
    return ""
