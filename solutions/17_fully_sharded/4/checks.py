"""17.4: ZeRO-3 by hand: a block is whole while it computes, and nothing is between micro-batches."""

from ddp_course.grader.vocabulary import check, driver_job, expect

from .driver import SIZES, STEPS, parts

FUNCTION = "FullySharded"
SAME = 1e-9  # of a weight in float64
RUNS = {"all blocks are trained": (None, 1), "block 1 is frozen, two micro-batches per step": (1, 2)}
JOBS = [driver_job(world, FUNCTION, RUNS, loads=("torch._dynamo",)) for world in (2, 3)]


@check("every message is started by your own lines")
def started_by_hand(case, rank, result):
    for operation in case.operations[rank]:
        observed = f"rank {rank} handed {operation.bytes:,} bytes to {operation.op}, called by no line of your file"
        expect(operation.line is not None, observed, "whose code starts the messages? It has to be yours, no wrapper's")


@check("a rank holds its parts, and one block on top while that computes, in forward and in backward")
def one_block_is_whole_at_a_time(case, rank, result):
    for when, size, limit in result["memory"]:
        than, look = " more than before", "who still has a block that has computed: a name, or what autograd has saved?"
        if when.startswith("before"):
            than, look = "", "what is left whole: a block after its backward, also a frozen one, or a gradient"
        expect(size <= limit, f"{when}, rank {rank} holds {size:,} bytes{than}; {limit:,} are enough", look)


@check("every block computes with the weights of one process, in every step")
def the_weights_are_those_of_one_process(case, rank, result):
    for block, gap in result["gaps"]:
        observed = f"block {block} computes on rank {rank} with weights that are {gap:.1e} away from one process"
        expect(gap < SAME, observed, "the mean over ranks of each micro-batch's gradient, added up over micro-batches")


@check("a block is gathered twice and its gradient reduce-scattered once per micro-batch")
def little_is_sent(case, rank, result):
    frozen, pieces = RUNS[case.scenario]
    weights, gradients = parts(frozen, case.world)
    limits = {
        "all_gather": (2 * len(SIZES), 2 * sum(weights)),
        "reduce_scatter": (sum(map(bool, gradients)), case.world * sum(gradients)),
    }
    for op in dict.fromkeys(operation.op for operation in case.operations[rank]):
        sizes = [operation.bytes for operation in case.operations[rank] if operation.op == op]
        most, size = (STEPS * pieces * limit for limit in limits.get(op, (0, 0)))
        observed = f"rank {rank} started {len(sizes)} {op} with {sum(sizes):,} bytes; allowed are {most} with {size:,}"
        look = "one message per block: its weights before forward and backward, its part of the mean gradient after it"
        expect(len(sizes) <= most and sum(sizes) <= size, observed, look)
