"""17.4: ZeRO-3 by hand: a block is whole while it computes, and no block is between micro-batches."""

from ddp_course.grader.vocabulary import check, driver_job, expect, expect_small_gap

from .driver import SIZES, STEPS, shard_bytes

FUNCTION = "FullySharded"
TOLERANCE = 1e-9  # of a weight in float64
SPARE_ELEMENTS = 2 * len(SIZES)  # a block's three parameters may be divided each for itself
RUNS = {  # the frozen block, and the number of micro-batches per step
    "all blocks are trained": (None, 1),
    "block 1 is frozen, two micro-batches per step": (1, 2),
    "block 0 is frozen": (0, 1),
}
JOBS = [driver_job(world, FUNCTION, RUNS, loads=("torch._dynamo",)) for world in (2, 3)]


@check("every message is started by your own lines")
def started_by_hand(case, rank, result):
    for operation in case.operations[rank]:
        observed = f"rank {rank} handed {operation.bytes:,} bytes to {operation.op}, called by no line of your file"
        expect(operation.line is not None, observed, "whose code starts the messages? It has to be yours, no wrapper's")


@check("a rank holds its parts, and one block on top while that computes, in forward and in backward")
def one_block_is_whole_at_a_time(case, rank, result):
    for when, size, limit in result["memory"]:
        than, look_at = " more than before", "what still refers to a block that has computed: a variable, or autograd?"
        if when.startswith("before"):
            than, look_at = "", "what is still whole: a block after its backward, also a frozen one, or a gradient"
        expect(size <= limit, f"{when}, rank {rank} holds {size:,} bytes{than}; {limit:,} are enough", look_at)


@check("the optimizer gets the rank's parts of the blocks that are trained")
def the_optimizer_gets_the_trained_parts(case, rank, result):
    _, gradients = shard_bytes(RUNS[case.scenario][0], case.world)
    most = sum(gradients) // 8 + SPARE_ELEMENTS
    expect(
        result["elements"] <= most,
        f"the optimizer of rank {rank} got {result['elements']:,} elements; its parts of the trained blocks have "
        f"{most:,}",
        "what is given to make_optimizer: a frozen block has no gradients to step with",
    )


@check("every block computes with the weights of one process, in every step")
def the_weights_are_those_of_one_process(case, rank, result):
    look_at = "the mean over ranks of each micro-batch's gradient, added up over micro-batches"
    for block, gap in result["gaps"]:
        expect_small_gap(gap, TOLERANCE, f"a weight with which block {block} computes on rank {rank}", look_at)


@check("a block is gathered twice and its gradient reduce-scattered once per micro-batch")
def little_is_sent(case, rank, result):
    frozen, micro_batches = RUNS[case.scenario]
    weights, gradients = shard_bytes(frozen, case.world)
    limits = {
        "all_gather": (2 * len(SIZES), 2 * sum(weights)),
        "reduce_scatter": (sum(map(bool, gradients)), case.world * sum(gradients)),
    }
    for op in dict.fromkeys(operation.op for operation in case.operations[rank]):
        sizes = [operation.bytes for operation in case.operations[rank] if operation.op == op]
        count, size = (STEPS * micro_batches * limit for limit in limits.get(op, (0, 0)))
        observed = f"rank {rank} started {len(sizes)} {op} with {sum(sizes):,} bytes; allowed are {count} with {size:,}"
        look_at = (
            "one message per block: its weights before forward and backward, its part of the mean gradient after it"
        )
        expect(len(sizes) <= count and sum(sizes) <= size, observed, look_at)
