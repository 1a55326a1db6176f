"""22.1: a gated MLP cut over the ranks by hand: columns, then rows, one message each way."""

from ddp_course.grader.vocabulary import check, driver_job, expect, expect_small_gap, total_bytes

from .driver import HIDDEN, TOKENS, WIDTH

assert HIDDEN % 12 == 0  # divides by 2, 3 and 4 ranks

FUNCTION = "ParallelMLP"
STEPS, CLOSE = 3, 1e-10
GAPS = 8 * 3  # bytes per step that the driver itself all-reduces: three gaps
MESSAGE = 8 * 2 * TOKENS * WIDTH  # bytes of the layer's input, and of its output

CALLS = {"hidden layer of 24, its gate and up in one weight": (STEPS,)}
JOBS = [driver_job(world, FUNCTION, CALLS, loads=("torch._dynamo",)) for world in (2, 4, 3, 1)]


@check("each rank holds its part of both weights")
def each_rank_holds_its_part(case, rank, result):
    right = (result["whole"] - WIDTH) // case.world + WIDTH
    expect(
        result["elements"] == right,
        f"rank {rank} has {result['elements']} numbers in its parameters, not {right}",
        "both weights and the bias of the first layer are cut; the bias of the second is whole",
    )


@check("the output is that of one process")
def the_output_is_that_of_one_process(case):
    look_at = "which rows of the first layer make a part of gate and the same part of up; where the bias is added"
    expect_small_gap(case.results[0]["steps"][0]["output"], CLOSE, "the output", look_at)


@check("the input gets the whole gradient, on every rank")
def the_input_gets_its_whole_gradient(case):
    expect_small_gap(
        case.results[0]["steps"][0]["input"],
        CLOSE,
        "the gradient of the input",
        "in backward each rank has a part of the sum for x; the gradient of the output is whole, and not summed again",
    )


@check("it learns as one process does, on 1 to 4 ranks")
def the_weights_learn_as_in_one_process(case):
    for step, gaps in enumerate(case.results[0]["steps"]):
        look_at = "every rank has a copy of the bias, and every copy gets the whole gradient, once"
        expect_small_gap(gaps["bias"], CLOSE, f"after {step} steps the bias of second on some rank", look_at)
        look_at = "the gradients of the weights: is each counted once, and does every parameter get its own?"
        expect_small_gap(max(gaps.values()), CLOSE, f"after {step} steps the layer", look_at)


@check("one message in forward, one in backward", [job for job in JOBS if job.world > 1])
def one_message_each_way(case):
    for rank, operations in enumerate(case.operations):
        sent = total_bytes(operations) - STEPS * GAPS
        expect(
            sent <= STEPS * 2 * MESSAGE,
            f"rank {rank} handed over {sent // STEPS} bytes per step; the output and the gradient of the input are "
            f"{2 * MESSAGE} in all",
            "what is sent: the output once, and the gradient of x, once; the hidden layer and the weights stay",
        )
