"""23.2: a torch pipeline whose gradients are not those of one process: padding, and a table on two stages."""

from ddp_course.distributed.torch_versions import VOTES_PER_PIPELINE_STEP
from ddp_course.grader.vocabulary import check, driver_job, expect, expect_few_bytes, expect_small_gap

from .driver import LENGTH, MICRO_BATCHES, VOCABULARY, WIDTH, WINDOWS

FUNCTION = "Pipeline"
CLOSE = 1e-10
MOMENTUM = {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.1}
RUNS = {  # whether there is padding, the number of steps, the optimizer and its settings
    "no padding": (False, 3, "SGD", MOMENTUM),
    "padded": (True, 4, "SGD", MOMENTUM),
    "padded, Adam": (True, 3, "AdamW", {"lr": 0.01}),
}
TABLE, ACTIVATIONS = 8 * VOCABULARY * WIDTH, 8 * WINDOWS * LENGTH * WIDTH  # bytes
SHAPES = 4096  # bytes per run: before the first step torch sends shapes to the neighbours

LOADS = ("torch._dynamo", "torch.distributed.pipelining")
JOBS = [driver_job(world, FUNCTION, RUNS, loads=LOADS) for world in (2, 3)]


@check("each batch goes through the stages in its micro-batches")
def the_batch_is_cut(case, rank, steps):
    calls = steps[-1]["calls"]
    expect(
        calls == [WINDOWS // MICRO_BATCHES] * MICRO_BATCHES,
        f"rank {rank} called its stage with {calls} windows in the last step; the batch has {WINDOWS}, to be cut "
        f"into {MICRO_BATCHES} micro-batches",
        "how many micro-batches the schedule gets: with one, all stages but one wait",
    )


@check("every target counts the same, with padding and without")
def every_target_counts_the_same(case, rank, steps):
    look_at = "how often a gradient is divided, and by how many targets: by the loss, and by the schedule"
    if case.args[0][0]:
        look_at = "the divisor: padding is no target, and a mean of means counts few targets more"
    expect_small_gap(steps[0]["layers"], CLOSE, f"after the first step a layer of rank {rank}", look_at)


@check("both copies of the table get the whole gradient")
def both_copies_get_the_whole_gradient(case, rank, steps):
    look_at = "in one process the table gets one step, with the gradients of the embedding and of the output layer"
    expect_small_gap(steps[0]["table"], CLOSE, f"after the first step the table of rank {rank}", look_at)


@check("after every step all weights are those of one process, on 2 and 3 ranks")
def it_learns_as_one_process_does(case, rank, steps):
    look_at = "what belongs to a single batch: how many targets it has, and its gradients; the first step was right"
    for number, step in enumerate(steps):
        gap = max(step["layers"], step["table"])
        expect_small_gap(gap, CLOSE, f"after step {number} a weight of rank {rank}", look_at)


@check("the gradient of the table is sent by the two that have one")
def only_the_ends_send_the_table(case, rank, steps):
    operations, ends = case.operations[rank], rank in (0, case.world - 1)
    needed = len(steps) * ((1 if ends else 2) * ACTIVATIONS + ends * TABLE)
    purpose = f"; its activations and gradients{' and one table per step' * ends} have {needed:,}"
    look_at = "which ranks have a copy of the table, and what they need of the other: its gradient, once"
    expect_few_bytes(rank, operations, needed + SHAPES, purpose, look_at, without=("recv",))
    small = [
        index for index, operation in enumerate(operations) if operation.op == "all_reduce" and operation.bytes == 4
    ]
    votes = small[: VOTES_PER_PIPELINE_STEP * len(steps)]  # torch's own, not the learner's
    for index, operation in enumerate(operations):
        expect(
            ends or operation.op in ("send", "recv") or index in votes,
            f"rank {rank}, between the ends, took part in {operation.op}",
            "what a rank without a table lacks: every rank has the whole batch, and can count its targets",
        )
