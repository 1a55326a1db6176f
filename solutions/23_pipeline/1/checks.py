"""23.1: one batch through the stages of a pipeline, by hand, in the order of 1F1B, with micro-batches of any sizes."""

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

from .driver import WIDTH

FUNCTION = "one_batch"
CLOSE = 1e-10
RUNS = {
    "1 micro-batch": ((4,), 1),
    "2 equal micro-batches": ((3, 3), 1),
    "4 equal micro-batches": ((2, 2, 2, 2), 1),
    "3 micro-batches of 3, 1 and 2 samples": ((3, 1, 2), 1),
    "6 micro-batches of 1 to 4 samples": ((2, 4, 1, 3, 1, 2), 1),
    "2 batches, their gradients added up": ((2, 1, 3), 2),
}


def job(world):
    return Job(world, FUNCTION, tuple(Call([run] * world, given) for given, run in RUNS.items()), driver=True)


JOBS = [job(world) for world in (2, 3, 1)]


def each_micro_batch_is_computed_once(records):
    """On every rank, the stage is called once for each micro-batch, and there is one backward for each."""
    for case, sizes, batches in runs(records):
        for rank, result in enumerate(case.results):
            right = batches * len(sizes)
            calls, backwards = (sum(one[0] == kind for one in result["order"]) for kind in "FB")
            if (calls, backwards) != (right, right):
                raise Wrong(
                    f"{case.where}rank {rank} ran its stage forward {calls} and backward {backwards} times, for "
                    f"{right} micro-batch{'es' * (right > 1)}",
                    "what a forward has left is there until its backward: nothing is computed again or put together",
                )
    return "each stage computes each micro-batch once"


def the_gradients_are_those_of_one_process(records):
    """After a batch each parameter's gradient has grown by that of the mean over all samples of the batch."""
    for case, sizes, _ in runs(records):
        for rank, result in enumerate(case.results):
            for number, gap in enumerate(result["gaps"]):
                if not gap < CLOSE:
                    raise Wrong(
                        f"{case.where}after batch {number} the gradients of rank {rank} are {gap:.1e} away from those "
                        "of one process",
                        where_to_look(sizes, number),
                    )
    return "all gradients are those of one process, on 1 to 3 ranks"


def where_to_look(sizes, number):
    if number:
        return "what is in .grad before the batch: it stays, and the batch is added"
    if len(sizes) == 1:
        return "what backward is given on a rank that has no loss, and what that rank hands back"
    if len(set(sizes)) == 1:
        return "the loss of a micro-batch is a mean over its own samples: how much of the batch's mean is it?"
    return "a mean of means: a micro-batch counts by its samples"


def little_is_held(records):
    """At no time has a rank the activations of more than ranks - rank micro-batches."""
    for case, _, _ in runs(records):
        for rank, result in enumerate(case.results):
            if result["held"] > case.world - rank:
                raise Wrong(
                    f"{case.where}autograd held {result['held']} micro-batches at once on rank {rank}, where 1F1B "
                    f"holds at most {case.world - rank}",
                    "when the first backward comes, and what is left of a micro-batch after its backward",
                )
    return "rank r never holds more than p - r micro-batches"


def one_forward_one_backward(records):
    """The order of work is that of 1F1B: min(ranks - rank, micro-batches) forwards, then a backward and a forward."""
    for case, sizes, batches in runs(records):
        for rank, result in enumerate(case.results):
            right = [one for number in range(batches) for one in order(rank, case.world, len(sizes), number)]
            if result["order"] != right:
                raise Wrong(
                    f"{case.where}rank {rank} computed {' '.join(result['order'])}; 1F1B is {' '.join(right)}",
                    "how many forwards come first, and what follows after each backward: other ranks wait for it",
                )
    return "the order is that of 1F1B"


def order(rank, ranks, micro_batches, batch):
    first = min(ranks - rank, micro_batches)
    found = [("F", number) for number in range(first)]
    for number in range(micro_batches):
        found += [("B", number), ("F", number + first)]
    return [f"{kind}{number + batch * micro_batches}" for kind, number in found if number < micro_batches]


def each_number_is_sent_once(records):
    """A rank hands over its outputs and the gradients of its inputs, samples x width numbers each, and nothing else."""
    for case, sizes, batches in runs(records):
        for rank, operations in enumerate(case.operations):
            neighbours = (rank > 0) + (rank < case.world - 1)
            right = 8 * WIDTH * sum(sizes) * neighbours * batches
            sent = sum(one.bytes for one in operations if one.op != "recv")
            if any(one.op == "barrier" for one in operations):
                look = "a rank waits for what it receives, and for nothing else"
                raise Wrong(f"{case.where}rank {rank} started a barrier, which sends to all ranks", look)
            if sent > right:
                raise Wrong(
                    f"{case.where}rank {rank} handed over {sent} bytes; its outputs and the gradients of its inputs "
                    f"are {right}",
                    "who needs a tensor: the next rank an output, the rank before a gradient; as long as it is",
                )
    return "activations are sent once, and their gradients once"


CHECKS = [
    each_micro_batch_is_computed_once,
    the_gradients_are_those_of_one_process,
    little_is_held,
    one_forward_one_backward,
    each_number_is_sent_once,
]


def runs(records):
    for case in cases(records):
        yield case, *RUNS[case.given]
