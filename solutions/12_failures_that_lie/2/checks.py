"""12.2: a detector for replicas that have parted, in whatever part of the state, by however little."""

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.messages import assert_few_collectives
from ddp_course.grader.verdict import Wrong

FUNCTION = "odd_ranks"
MOST_BYTES, MOST_COLLECTIVES = 256, 2
NORM = "running statistics of a BatchNorm, by each rank's own batch"
SOUND = ("all ranks hold the same", "before the first update", "SGD without momentum", NORM)
PARTS = {  # of the state, by a word in the name of the change
    "no tensor": "the optimizer's state, also what is no tensor in it",
    "is a tensor": "the optimizer's settings: print() and repr() show four digits of a tensor",
    "running_mean": "buffers: whose they are, and not what they are called",
    "buffer": "buffers, also those outside the state_dict",
    "zero": "bits: 0.0 and -0.0 are equal as numbers",
    "NaN": "bits: each number at its place",
    "momentum": "the optimizer's state",
    "second moment": "the optimizer's state",
    "updates": "the optimizer's state",
    "learning rate": "the optimizer's settings, in every param_group",
    "frozen": "all parameters, also frozen ones",
    "places": "the order: which number stands where",
    "sum": "a sum hides what cancels",
}
CHANGED = (
    "the last bit of one weight",
    "the last bit of a weight in bfloat16",
    "the last bit of a weight that is a transposed view",
    "the last bit of a weight without dimensions",
    "the last bit of a frozen weight",
    "two weights that changed places",
    "two weights changed, their sum as before",
    "two layers that changed places",
    "the last bit of a weight of the norm",
    "a buffer that is called running_mean",
    "a buffer that is not in the state_dict",
    "the sign of a zero",
    "a NaN in another place",
    "the last bit of the momentum",
    "the last bit of the second moment",
    "the count of updates",
    "the learning rate of the second group",
    "the count of updates that is no tensor",
    "the last bit of a learning rate that is a tensor",
)


def given(what, ranks):
    return f"{what}, on rank{'s' * (len(ranks) > 1)} {' and '.join(map(str, ranks))}" if ranks else what


FOUR = [(what, [(3 * number + 1) % 4], [(3 * number + 1) % 4]) for number, what in enumerate(CHANGED)]
FOUR += [("the last bit of one weight", [0, 3], [0, 1, 2, 3])]
THREE = [
    ("the last bit of one weight", [0], [0]),
    ("the last bit of the momentum", [2], [2]),
    ("a buffer that is called running_mean", [0, 1], [2]),
    ("a weight on one rank and the momentum on another", [1, 2], [0, 1, 2]),
]
TWO = [("the last bit of one weight", [1], [0, 1])]
EQUAL = [(what, [], []) for what in SOUND]
DONE = {4: EQUAL + FOUR, 3: EQUAL + THREE, 2: EQUAL + TWO, 1: EQUAL}  # (what, the ranks it is done on, those to name)
JOBS = [
    Job(
        world,
        FUNCTION,
        tuple(Call([(what, on)] * world, given(what, on)) for what, on, _ in done),
        seconds=8.0,
        driver=True,
        loads=("torch._dynamo",),
    )
    for world, done in DONE.items()
]
TO_NAME = {(world, given(what, on)): (what, named) for world, done in DONE.items() for what, on, named in done}


def equal_replicas_pass(records):
    """odd_ranks returns [] on every rank while all ranks hold the same."""
    for case, _, ranks in looks(records):
        for rank, result in enumerate(case.results):
            if not ranks and result["returned"] != []:
                look = "what you compare besides the state, or a number that is not equal to itself (NaN), or a hash "
                look += "that differs from process to process"
                if case.given == NORM:
                    look = "the buffers of BatchNorm: between two steps each rank has its own"
                raise Wrong(f"{case.where}{FUNCTION} returned {result['returned']!r} on rank {rank}, not []", look)
    return "no alarm where all ranks hold the same, also with a NaN, or a BatchNorm"


def every_difference_is_seen(records):
    """A difference in parameters, buffers or optimizer, by however little, is seen."""
    for case, what, ranks in looks(records):
        if ranks and case.results[0]["returned"] == []:
            look = next((look for word, look in PARTS.items() if word in what), "every bit of every parameter")
            raise Wrong(f"{case.where}{FUNCTION} returned [] on rank 0", look)
    return f"{len(CHANGED)} kinds of difference are seen, each on one rank"


def the_odd_ranks_are_named(records):
    """Every rank returns the ranks that do not hold what more than half hold; all, if there is no such state."""
    for case, _, ranks in looks(records):
        for rank, result in enumerate(case.results):
            if result["returned"] != ranks:
                look = "rank 0 may be the odd one: more than half of the ranks decide; without such a majority, all"
                if result["returned"] != case.results[0]["returned"]:
                    look = "every rank has to know: it may be the only one whose log survives"
                raise Wrong(f"{case.where}{FUNCTION} returned {result['returned']!r} on rank {rank}, not {ranks}", look)
    return "every rank names the odd ranks, on 1 to 4 ranks"


def little_is_sent(records):
    """A rank starts at most two collectives and hands over at most 256 bytes."""
    sent = max(sum(one.bytes for one in ops) for case in cases(records) for ops in case.operations)
    few = assert_few_collectives(
        cases(records), MOST_COLLECTIVES, MOST_BYTES, "a fingerprint has a fixed size, however large the model is"
    )
    return f"{few}, at most {sent} bytes"


def nothing_is_touched(records):
    """Parameters, gradients, buffers, optimizer, modes and the random state are as before."""
    for case in cases(records):
        for rank, result in enumerate(case.results):
            if result["touched"]:
                raise Wrong(
                    f"{case.where}on rank {rank} {FUNCTION} changed {result['touched'][0]}",
                    "a run that is looked at has to go on as one that is not",
                )
    return "the run goes on as if nobody had looked"


CHECKS = [equal_replicas_pass, every_difference_is_seen, the_odd_ranks_are_named, little_is_sent, nothing_is_touched]


def looks(records):
    """Each case, what was changed in it, and the ranks that are to be named."""
    for case in cases(records):
        yield case, *TO_NAME[case.world, case.given]
