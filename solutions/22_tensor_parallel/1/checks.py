"""22.1: a gated MLP cut over the ranks by hand: columns, then rows, one message each way."""

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

from .driver import HIDDEN, TOKENS, WIDTH

FUNCTION = "ParallelMLP"
STEPS, CLOSE = 3, 1e-10
MESSAGE = 8 * 2 * TOKENS * WIDTH  # bytes of the layer's input, and of its output


def job(world):
    given = "hidden layer of 24, its gate and up in one weight"
    return Job(world, FUNCTION, (Call([(STEPS,)] * world, given),), driver=True, loads=("torch._dynamo",))


JOBS = [job(world) for world in (2, 4, 3, 1)]


def each_rank_holds_its_part(records):
    """A rank holds one part in `world` of the weights, and the whole output bias."""
    for case in cases(records):
        for rank, result in enumerate(case.results):
            right = (result["whole"] - WIDTH) // case.world + WIDTH
            if result["held"] != right:
                raise Wrong(
                    f"{case.where}rank {rank} has {result['held']} numbers in its parameters, not {right}",
                    "both weights and the bias of the first layer are cut; the bias of the second is whole",
                )
    return "each rank holds its part of both weights"


def the_output_is_that_of_one_process(records):
    """On every rank the first output is that of the whole layer."""
    for case in cases(records):
        gap = case.results[0]["steps"][0]["output"]
        if not gap < CLOSE:
            look = "which rows of the first layer make a part of gate and the same part of up; where the bias is added"
            raise Wrong(f"{case.where}the output is {gap:.1e} away from one process", look)
    return "the output is that of one process"


def the_input_gets_its_whole_gradient(records):
    """On every rank the gradient of the input is that of the whole layer."""
    for case in cases(records):
        gap = case.results[0]["steps"][0]["input"]
        if not gap < CLOSE:
            raise Wrong(
                f"{case.where}the gradient of the input is {gap:.1e} away from one process",
                "in backward each rank has a part of the sum for x; and what was summed forward is not summed again",
            )
    return "the input gets the whole gradient, on every rank"


def the_weights_learn_as_in_one_process(records):
    """After updates of its own part, each rank computes what one process does."""
    for case in cases(records):
        for step, found in enumerate(case.results[0]["steps"]):
            if not found["bias"] < CLOSE:
                raise Wrong(
                    f"{case.where}after {step} updates the bias of second is {found['bias']:.1e} away from one process "
                    "on some rank",
                    "every rank has a copy of the bias, and every copy gets the whole gradient, once",
                )
            gap = max(found.values())
            if not gap < CLOSE:
                raise Wrong(
                    f"{case.where}after {step} updates the layer is {gap:.1e} away from one process",
                    "the gradients of the weights: is each counted once, and does every parameter get its own?",
                )
    return "it learns as one process does, on 1 to 4 ranks"


def one_message_each_way(records):
    """A step sends the output once in forward and the input's gradient once in backward."""
    gaps = 8 * 3  # the driver's own three numbers per step
    for case in cases(records):
        for rank, operations in enumerate(case.operations):
            sent = sum(one.bytes for one in operations) - STEPS * gaps
            if case.world > 1 and sent > STEPS * 2 * MESSAGE:
                raise Wrong(
                    f"{case.where}rank {rank} handed over {sent // STEPS} bytes per step; the output and the gradient "
                    f"of the input are {2 * MESSAGE} together",
                    "what travels: the output once, and the gradient of x, once; the hidden layer and the weights stay",
                )
    return "one message in forward, one in backward"


CHECKS = [
    each_rank_holds_its_part,
    the_output_is_that_of_one_process,
    the_input_gets_its_whole_gradient,
    the_weights_learn_as_in_one_process,
    one_message_each_way,
]
assert HIDDEN % 12 == 0  # divides by 2, 3 and 4 ranks
