"""03.3: data parallel by hand: buckets that leave while backward is still running, within a budget."""

import math

from ddp_course.base.quantity import with_prefix
from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

FUNCTION = "BucketedDataParallel"
LAYERS, LAYER_BYTES = 8, 64 * 64 * 4  # of the driver's wide model
BUCKET = 2.5 * LAYER_BYTES  # bytes: two layers
MESSAGES = math.ceil(LAYERS * LAYER_BYTES / BUCKET) + 1  # one to spare
NOTES = 1.01  # of what has to be sent; what is above it may be notes on it
BUFFERS = {
    "scale": "is a buffer",
    "shift": "is a buffer that is not saved (persistent=False)",
    "count": "is a buffer of integers",
}
SAME = 1e-9  # float64 sums in another order
NEARLY_SAME = 1e-4  # the wide model is float32


def job(world, **given):
    """`given` by what the driver is to do."""
    calls = tuple(Call([(what.replace("_", " "),)] * world, text) for what, text in given.items())
    return Job(world, FUNCTION, calls, driver=True)


TRAIN = "float64, tied, frozen, buffers; 1, 3, 2 and 1 micro-batches"
TINY = "the same; buckets of 16 bytes, smaller than any gradient"
BUDGET = "8 layers of 16 KiB, buckets of 40 KiB"
UNEQUAL = "a bucket of 16 MiB leaves, and after it one of 4 bytes"
JOBS = [
    job(2, train=TRAIN, train_with_tiny_buckets=TINY),
    job(3, train=TRAIN),
    job(1, train=TRAIN),
    job(4, budget=BUDGET),
    job(2, overlap=BUDGET, large_and_small=UNEQUAL),
]


def built_by_hand(records):
    """Every message starts in the answer's own lines; torch's DistributedDataParallel is not used."""
    for case in cases(records):
        for rank, result in enumerate(case.results):
            if "ready_made" in result:
                raise Wrong(
                    f"rank {rank} built torch's {result['ready_made']}",
                    "what the wrapper does for you is what this exercise asks for",
                )
            for op, size, line in result.get("sent", []):
                if line is None:
                    raise Wrong(
                        f"{case.where}rank {rank} handed {size:,} bytes to {op}, called by no line of your file",
                        "whose code starts the messages? Here it has to be yours",
                    )
    return "every message is started by your own lines"


def starts_as_rank_0(records):
    """After construction every rank holds rank 0's parameters and buffers."""
    for case in trainings(records):
        for rank, result in enumerate(case.results):
            for name, gap in result["start"].items():
                if gap != 0:
                    raise Wrong(
                        f"{case.where}after construction {name} on rank {rank} is {gap:.2g} from rank 0's",
                        f"what is broadcast in __init__, and what {kind(name)}",
                    )
    return "construction gives every rank rank 0's parameters, frozen ones too, and buffers"


def equals_one_process(records):
    """At every update, gradients and weights are those of one process on the global batch."""
    worst = 0.0
    for case in trainings(records):
        for rank, result in enumerate(case.results):
            for number, update in enumerate(result["updates"], 1):
                batches = update["micro_batches"]
                when = f"{case.where}update {number} ({batches} micro-batch{'es' * (batches > 1)}): "
                for name, found in update["gradients"].items():
                    if found is None or not found[0] < SAME:
                        raise Wrong(when + on_gradient(rank, name, found), advice(found, batches, case.world))
                for name, gap in update["weights"].items():
                    if not gap < SAME:
                        raise Wrong(
                            f"{when}{name} on rank {rank} is {gap:.2g} from that of one process",
                            "what changes weights or buffers besides the optimizer",
                        )
                    worst = max(worst, gap)
    for case in watched(records, "orders"):
        for rank, result in enumerate(case.results):
            if not result["gap"] < NEARLY_SAME:
                raise Wrong(
                    f"{case.where}while rank 1 is late, the gradients on rank {rank} are off by "
                    f"{result['gap']:.0%} when finish_gradient_synchronization() has returned",
                    "which handles are waited for there",
                )
    for case in watched(records, "off"):
        for rank, result in enumerate(case.results):
            for name, gap in result["off"].items():
                if not gap < NEARLY_SAME:
                    raise Wrong(
                        f"{case.where}the gradient of {name} on rank {rank} is off by {gap:.0%} when "
                        "finish_gradient_synchronization() has returned",
                        "which handles are waited for there",
                    )
    return f"1, 2 and 3 ranks equal one process at every update, largest gap {worst:.0e}"


def replicas_agree(records):
    """After every update all ranks hold the same bits."""
    for case in trainings(records):
        for number, updates in enumerate(zip(*(result["updates"] for result in case.results), strict=True), 1):
            for rank, update in enumerate(updates):
                if update["bits"] != updates[0]["bits"]:
                    raise Wrong(
                        f"{case.where}after update {number} the weights of rank {rank} are not bit for bit rank 0's",
                        "the order in which each rank adds: a sum of floats depends on it",
                    )
    return "all ranks hold the same bits after every update"


def silent_under_no_sync(records):
    """Nothing is sent in a backward under no_sync."""
    for case in trainings(records):
        for rank, result in enumerate(case.results):
            if result["in_no_sync"]:
                raise Wrong(
                    f"{case.where}rank {rank} started {result['in_no_sync']} messages in 3 backward passes under "
                    "no_sync()",
                    "what the hook asks first",
                )
    return "nothing is sent under no_sync()"


def few_messages(records):
    """An update costs no more messages than the buckets need, and one to spare."""
    for case in watched(records, "sent"):
        for rank, result in enumerate(case.results):
            if len(result["sent"]) > MESSAGES:
                raise Wrong(
                    f"{case.where}rank {rank} started {len(result['sent'])} messages in an update; {MESSAGES} are "
                    "allowed",
                    "how many gradients travel in one message",
                )
    return f"{len(result['sent'])} messages an update for {LAYERS} gradients; {MESSAGES} were allowed"


def messages_fit_a_bucket(records):
    """No message is larger than a bucket, or than the one gradient in it."""
    for case in watched(records, "sent") + trainings(records):
        for rank, result in enumerate(case.results):
            messages, bucket = result.get("sent", result.get("messages")), result.get("bucket", BUCKET)
            op, size, line = max(messages, key=lambda one: one[1], default=("", 0, None))
            if size > bucket:
                raise Wrong(
                    f"{case.where}rank {rank} handed {size:,} bytes to one {op} (line {line}); a bucket holds "
                    f"{bucket:,.0f}",
                    "when is a bucket full",
                )
    [budget] = watched(records, "sent")
    largest = max(size for _, size, _ in budget.results[0]["sent"])
    return f"the largest message is {largest:,} bytes; a bucket holds {BUCKET:,.0f}"


def bytes_of_an_all_reduce(records):
    """A rank sends what an all-reduce of all gradients costs: 2(N-1)/N of them."""
    for case in watched(records, "sent"):
        world, size = case.world, LAYERS * LAYER_BYTES
        limit = NOTES * 2 * (world - 1) / world * size
        for rank, result in enumerate(case.results):
            sent = sum(bytes_sent(op, given, world) for op, given, _ in result["sent"])
            if sent > limit:
                names = " and ".join(dict.fromkeys(op for op, _, _ in result["sent"]))
                raise Wrong(
                    f"{case.where}with {names} rank {rank} sends {with_prefix(sent, 'B')} for "
                    f"{with_prefix(size, 'B')} of gradients; an all-reduce sends 2(N-1)/N of them, "
                    f"{with_prefix(limit / NOTES, 'B')}",
                    "who needs the gradients of the single ranks? The sum is enough, and a ring adds on the way",
                )
    return f"a rank sends {with_prefix(sent, 'B')} for {with_prefix(size, 'B')} of gradients, as an all-reduce does"


def talks_during_backward(records):
    """The first message leaves before the last gradient is made, and backward does not wait for the other ranks."""
    for case in watched(records, "orders"):
        for rank, result in enumerate(case.results):
            for order, behind in zip(result["orders"], (", in an update with no_sync()", ""), strict=True):
                first = next((place for place, one in enumerate(order) if isinstance(one, str)), len(order))
                made = [one for one in order[:first] if not isinstance(one, str)]
                if 0 in made:
                    raise Wrong(
                        f"{case.where}rank {rank} started its first message "
                        f"{'after backward had ended' if -1 in made else 'with the last gradient'}{behind}; "
                        "nothing travels while it computes",
                        "which code runs in the middle of backward? A hook on a parameter does",
                    )
            if result["gave_up"]:
                raise Wrong(
                    f"{case.where}rank 0 started its first message and then stood still in backward until rank {rank} "
                    "came; computation and communication took turns",
                    "async_op=True, and where the handle is waited for",
                )
    left = LAYERS - len(made)
    return f"the first message leaves with {left} of {LAYERS} gradients still to be made, and nobody waits for it there"


CHECKS = [
    built_by_hand,
    starts_as_rank_0,
    equals_one_process,
    replicas_agree,
    silent_under_no_sync,
    few_messages,
    messages_fit_a_bucket,
    bytes_of_an_all_reduce,
    talks_during_backward,
]


def trainings(records):
    return watched(records, "updates")


def watched(records, key):
    return [case for case in cases(records) if key in case.results[0]]


def kind(name):
    if name in BUFFERS:
        return BUFFERS[name]
    return "is frozen" if "frozen" in name else "a rank's own seed has made"


def on_gradient(rank, name, found):
    if found is None:
        return f"the gradient of {name} on rank {rank} is None"
    gap, times = found
    like = f", {times:.2f} times as large" if abs(times - 1) > 0.01 and abs(times - round(times, 2)) < 1e-6 else ""
    return f"the gradient of {name} on rank {rank} is {gap:.2g} from that of one process{like}"


def advice(found, batches, world):
    if found and abs(found[1] - world) < 1e-6:
        return "a sum over the ranks is not yet a mean"
    if batches > 1:
        return "after no_sync .grad holds several micro-batches: does all of it reach the other ranks, once?"
    return "what every rank finds in .grad when finish_gradient_synchronization() has returned"


def bytes_sent(op, given, world):
    """What a rank sends if the collective goes round a ring; `given` bytes were handed to it."""
    share = (world - 1) / world
    costs = {"all_reduce": 2 * share, "reduce_scatter": share, "all_gather": world - 1, "all_to_all": share, "recv": 0}
    return given * costs.get(op, 1)
