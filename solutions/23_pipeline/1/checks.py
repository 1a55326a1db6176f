"""23.1: one batch through the stages of a pipeline, by hand, in the order of 1F1B, with micro-batches of any sizes."""

from ddp_course.grader.vocabulary import check, driver_job, expect, expect_few_bytes, expect_small_gap

from .driver import WIDTH

FUNCTION = "one_batch"
CLOSE = 1e-10
RUNS = {  # the sizes of the micro-batches, the number of batches
    "1 micro-batch": ((4,), 1),
    "2 equal micro-batches": ((3, 3), 1),
    "4 equal micro-batches": ((2, 2, 2, 2), 1),
    "3 micro-batches of 3, 1 and 2 samples": ((3, 1, 2), 1),
    "6 micro-batches of 1 to 4 samples": ((2, 4, 1, 3, 1, 2), 1),
    "2 batches, their gradients added up": ((2, 1, 3), 2),
}
JOBS = [driver_job(world, FUNCTION, RUNS) for world in (2, 3, 1)]


@check("each stage computes each micro-batch once")
def each_micro_batch_is_computed_once(case, rank, result):
    sizes, batches = case.args[0]
    right = batches * len(sizes)
    calls, backwards = (sum(work[0] == kind for work in result["order"]) for kind in "FB")
    expect(
        calls == backwards == right,
        f"rank {rank} ran its stage forward {calls} and backward {backwards} times, for {right} "
        f"micro-batch{'es' * (right > 1)}",
        "the graph of a forward is kept until its backward: nothing is computed again or put together",
    )


@check("all gradients are those of one process, on 1 to 3 ranks")
def the_gradients_are_those_of_one_process(case, rank, result):
    for number, gap in enumerate(result["gaps"]):
        look_at = where_to_look(case.args[0][0], number, case.world)
        expect_small_gap(gap, CLOSE, f"after batch {number} a gradient of rank {rank}", look_at)


@check("rank r never holds more than p - r micro-batches")
def little_is_held(case, rank, result):
    expect(
        result["most_held"] <= case.world - rank,
        f"autograd held {result['most_held']} micro-batches at once on rank {rank}, where 1F1B holds at most "
        f"{case.world - rank}",
        "when the first backward comes, and what is left of a micro-batch after its backward",
    )


@check("the order is that of 1F1B")
def one_forward_one_backward(case, rank, result):
    sizes, batches = case.args[0]
    right = [work for number in range(batches) for work in order(rank, case.world, len(sizes), number)]
    expect(
        result["order"] == right,
        f"rank {rank} computed {' '.join(result['order'])}; 1F1B is {' '.join(right)}",
        "how many forwards come first, and what follows after each backward: other ranks wait for it",
    )


@check("activations are sent once, and their gradients once")
def each_number_is_sent_once(case, rank, result):
    sizes, batches = case.args[0]
    neighbours = (rank > 0) + (rank < case.world - 1)
    right = 8 * WIDTH * sum(sizes) * neighbours * batches
    expect(
        all(operation.op != "barrier" for operation in case.operations[rank]),
        f"rank {rank} started a barrier, which sends to all ranks",
        "a rank waits for what it receives, and for nothing else",
    )
    purpose = " for its outputs and the gradients of its inputs"
    look_at = "which rank needs a tensor: the next one an output, the one before a gradient, each as long as it is"
    expect_few_bytes(rank, case.operations[rank], right, purpose, look_at, without=("recv",))


def where_to_look(sizes, number, world):
    if world == 3:  # the runs with 2 ranks come first
        return "with 2 ranks all is right: what does a rank in the middle keep while the next micro-batch arrives?"
    if number:
        return "what is in .grad before the batch: it stays, and the gradient of the batch is added to it"
    if len(sizes) == 1:
        return "what backward is given on a rank that has no loss, and what that rank sends back"
    if len(set(sizes)) == 1:
        return "the loss of a micro-batch is a mean over its own samples: how much of the batch's mean is it?"
    return "a mean of means: a micro-batch counts by its samples"


def order(rank, ranks, micro_batches, batch):
    """The order of 1F1B: min(ranks - rank, micro_batches) forwards, then a backward and a forward by turns."""
    first = min(ranks - rank, micro_batches)
    work = [("F", number) for number in range(first)]
    for number in range(micro_batches):
        work += [("B", number), ("F", number + first)]
    return [f"{kind}{number + batch * micro_batches}" for kind, number in work if number < micro_batches]
