"""03.3: data parallel by hand: buckets that are sent while backward is still running, within a budget."""

import math

from ddp_course.base.quantity import with_prefix
from ddp_course.grader.vocabulary import Wrong, by_pattern, check, driver_job, expect

from .driver import BUCKET, END, LAYER_BYTES, LAYERS

FUNCTION = "BucketedDataParallel"
GRADIENTS = LAYERS * LAYER_BYTES  # bytes of all gradients of the wide model
MESSAGES = math.ceil(GRADIENTS / BUCKET) + 1  # one to spare
SLACK = 1.01  # times the bytes of an all-reduce: an answer may also send a few numbers about its gradients
KINDS = {  # part of a tensor's name: what is special about the tensor
    "scale": "is a buffer",
    "shift": "is a buffer that is not saved (persistent=False)",
    "count": "is a buffer of integers",
    "frozen": "is frozen",
    "": "depends on the rank's seed",
}
TOLERANCE = 1e-9  # float64 sums in another order
FLOAT32_TOLERANCE = 1e-4  # for the wide model and the one of unequal parameters
TRAINING = "float64, tied, frozen, buffers; 1, 3, 2 micro-batches, and 1 after an exception in no_sync"
TINY = "the same; buckets of 16 bytes, smaller than any gradient"
WIDE = "8 layers of 16 KiB, buckets of 40 KiB"
UNEQUAL = "a bucket of 16 MiB leaves, and after it one of 4 bytes"
TRAIN = [
    driver_job(2, FUNCTION, {TRAINING: ("train",), TINY: ("train", 16)}),
    *(driver_job(world, FUNCTION, {TRAINING: ("train",)}) for world in (3, 1)),
]
BUDGET = driver_job(4, FUNCTION, {WIDE: ("budget",)})
OVERLAP = driver_job(2, FUNCTION, {WIDE: ("overlap",), UNEQUAL: ("large_and_small",)})
JOBS = [BUDGET, *TRAIN, OVERLAP]  # BUDGET first: a message that exceeds its bucket is clearest there


@check("every message is started by your own lines", begin="")
def built_by_hand(case, rank, result):
    expect(
        "built_torch_ddp" not in result,
        f"rank {rank} built torch's DistributedDataParallel",
        "this exercise asks you to write what that wrapper does",
    )
    for op, size, line in result.get("messages", []):
        expect(
            line is not None,
            f"{case.where}rank {rank} handed {size:,} bytes to {op}, called by no line of your file",
            "whose code starts the messages? In this exercise it has to be yours",
        )


@check("construction gives every rank rank 0's parameters, frozen ones too, and buffers", TRAIN)
def starts_as_rank_0(case, rank, result):
    for name, gap in result["start"].items():
        expect(
            gap == 0,
            f"after construction {name} on rank {rank} is {gap:.2g} from rank 0's",
            f"what is broadcast in __init__: {name} {by_pattern(KINDS)(name)}",
        )


@check(lambda gaps: f"1, 2 and 3 ranks equal one process at every step, largest gap {max(gaps):.0e}", [*TRAIN, OVERLAP])
def equals_one_process(case, rank, result):
    if "steps" in result:
        return training_gap(case, rank, result["steps"][:-1])
    for name, gap in result["off"].items():
        expect(
            gap < FLOAT32_TOLERANCE,
            f"{name} on rank {rank}: off by {gap:.0%} when finish_gradient_synchronization() has returned",
            "which handles are waited for there",
        )
    return 0.0


@check("also in the step after an exception that has left no_sync()", TRAIN)
def equals_one_process_after_an_exception(case, rank, result):
    training_gap(case, rank, result["steps"][-1:], "the line of no_sync() that turns sending on again: is it reached?")


def training_gap(case, rank, steps, look_at=""):
    """The largest gap of a weight from that of one process. look_at: where to look; default: by the gradient."""
    for step in steps:
        batches = step["micro_batches"]
        when = f"step {step['number']} ({batches} micro-batch{'es' * (batches > 1)}): "
        for name, gradient in step["gradients"].items():
            if gradient is None or not gradient[0] < TOLERANCE:
                raise Wrong(
                    when + observed(rank, name, gradient), look_at or where_to_look(gradient, batches, case.world)
                )
        for name, gap in step["weights"].items():
            expect(
                gap < TOLERANCE,
                f"{when}{name} on rank {rank} is {gap:.2g} from that of one process",
                "what changes weights or buffers, other than the optimizer",
            )
    return max(gap for step in steps for gap in step["weights"].values())


@check("all ranks hold the same bits after every step", TRAIN)
def replicas_agree(case):
    for number, steps in enumerate(zip(*(result["steps"] for result in case.results), strict=True), 1):
        for rank, step in enumerate(steps):
            expect(
                step["bits"] == steps[0]["bits"],
                f"after step {number} the weights of rank {rank} are not bit for bit rank 0's",
                "the order in which each rank adds: a sum of floats depends on it",
            )


@check("nothing is sent under no_sync()", TRAIN)
def silent_under_no_sync(case, rank, result):
    expect(
        not result["in_no_sync"],
        f"rank {rank} started {result['in_no_sync']} messages in 3 backward passes under no_sync()",
        "which flag the hook has to read first",
    )


@check(lambda counts: f"{counts[-1]} messages per step for {LAYERS} gradients; {MESSAGES} were allowed", [BUDGET])
def few_messages(case, rank, result):
    count = len(result["messages"])
    expect(
        count <= MESSAGES,
        f"rank {rank} started {count} messages in a step; {MESSAGES} are allowed",
        "how many gradients are sent in one message",
    )
    return count


@check(lambda largest: f"the largest message is {largest[0]:,} bytes; a bucket holds {BUCKET:,.0f}", [BUDGET, *TRAIN])
def messages_fit_a_bucket(case, rank, result):
    op, size, line = max(result["messages"], key=lambda message: message[1], default=("", 0, None))
    expect(
        size <= result["bucket"],
        f"rank {rank} handed {size:,} bytes to one {op} (line {line}); a bucket holds {result['bucket']:,.0f}",
        "when is a bucket full",
    )
    return size


@check(
    lambda sent: (
        f"a rank sends {with_prefix(sent[-1], 'B')} for {with_prefix(GRADIENTS, 'B')} of gradients, "
        "as an all-reduce does"
    ),
    [BUDGET],
)
def bytes_of_an_all_reduce(case, rank, result):
    limit = bytes_sent("all_reduce", GRADIENTS, case.world)
    sent = sum(bytes_sent(op, handed, case.world) for op, handed, _ in result["messages"])
    operations = " and ".join(dict.fromkeys(op for op, _, _ in result["messages"]))
    expect(
        sent <= SLACK * limit,
        f"with {operations} rank {rank} sends {with_prefix(sent, 'B')} for {with_prefix(GRADIENTS, 'B')} of gradients; "
        f"an all-reduce sends 2(N-1)/N of them, {with_prefix(limit, 'B')}",
        "does any rank need the gradients of each single rank? The sum is enough, and a ring adds on the way",
    )
    return sent


@check(
    lambda left: (
        f"the first message leaves with {left[-1]} of {LAYERS} gradients still to be made, and no rank waits for it "
        "there"
    ),
    [OVERLAP],
    scenarios=[WIDE],
)
def sends_during_backward(case, rank, result):
    for order, when in zip(result["orders"], (", in a step with no_sync()", ""), strict=True):
        first = next((index for index, event in enumerate(order) if isinstance(event, str)), len(order))
        layers = order[:first]  # those that backward has reached
        expect(
            0 not in layers,
            f"rank {rank} started its first message "
            f"{'after backward had ended' if END in layers else 'with the last gradient'}{when}; nothing is sent while "
            "it computes",
            "which code runs in the middle of backward? A hook on a parameter does",
        )
    expect(
        not result["gave_up"],
        f"rank 0 started its first message and then waited in backward until rank {rank} came; computation and "
        "communication did not overlap",
        "async_op=True, and where the handle is waited for",
    )
    return LAYERS - len(layers)


def observed(rank, name, gradient):
    """The message about a wrong gradient."""
    if gradient is None:
        return f"the gradient of {name} on rank {rank} is None"
    gap, factor = gradient
    likeness = ""
    if abs(factor - 1) > 0.01 and abs(factor - round(factor, 2)) < 1e-6:
        likeness = f", {factor:.2f} times as large"
    return f"the gradient of {name} on rank {rank} is {gap:.2g} from that of one process{likeness}"


def where_to_look(gradient, batches, world):
    if gradient and abs(gradient[1] - world) < 1e-6:
        return "a sum over the ranks is not yet a mean"
    if batches > 1:
        return "after no_sync .grad holds several micro-batches: does all of it reach the other ranks, once?"
    return "what every rank finds in .grad when finish_gradient_synchronization() has returned"


def bytes_sent(op, handed, world):
    """The bytes that a rank sends if the collective goes round a ring; `handed` bytes were handed to it."""
    share = (world - 1) / world
    costs = {"all_reduce": 2 * share, "reduce_scatter": share, "all_gather": world - 1, "all_to_all": share, "recv": 0}
    return handed * costs.get(op, 1)
