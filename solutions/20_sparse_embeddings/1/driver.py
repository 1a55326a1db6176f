"""Inside a rank, for 20.1: call the learner's detector with sound and unsound steps, and run the learner's step."""

import torch
import torch.distributed as dist

from ddp_course.grader.harness.versions import driver_of

from .given import all_gathered, sparse_step

LR, ROWS, WIDTH, BATCH = 0.125, 20, 2, 4


# ---- versions of sparse_step(table, ids, gradients, lr) -------------------------------------------------------------


def gather(tensor):
    """The tensors of all ranks, concatenated."""
    return torch.cat(all_gathered(tensor.contiguous()))


def sum_by_row(ids, gradients):
    """(the ids, each once; the sum of each one's gradients)"""
    rows, index = ids.unique(return_inverse=True)
    return rows, gradients.new_zeros(len(rows), gradients.shape[1]).index_add_(0, index, gradients)


def identity(tensor):
    return tensor


def gathering_step(before_sum=identity, after_sum=torch.sign):
    """A step that gathers and sums the gradients: `before_sum` is applied to each of them, `after_sum` to each sum."""

    def step(table, ids, gradients, lr):
        rows, total = sum_by_row(gather(ids), gather(before_sum(gradients)))
        table[rows] -= lr * after_sum(total)

    return step


def dense_step(before_all_reduce=identity, after_sum=torch.sign):
    """A step that all-reduces a gradient as large as the table; `before_all_reduce` is applied to each rank's sums."""

    def step(table, ids, gradients, lr):
        total = before_all_reduce(torch.zeros_like(table).index_add_(0, ids, gradients))
        dist.all_reduce(total)
        table -= lr * after_sum(total)

    return step


def broadcast_by_rank_0(table, ids, gradients, lr):
    ids, gradients = gather(ids), gather(gradients)
    if dist.get_rank() == 0:
        local_step(table, ids, gradients, lr)
    whole = table.detach().contiguous()
    dist.broadcast(whole, 0)
    table.copy_(whole)


def local_step(table, ids, gradients, lr):
    """The step of one process with this batch; nothing is sent."""
    rows, total = sum_by_row(ids, gradients)
    table[rows] -= lr * total.sign()


def all_reduce_gradients(table, ids, gradients, lr):
    gradients = gradients.clone()
    dist.all_reduce(gradients)
    local_step(table, ids, gradients, lr)


def last_gradient_wins(table, ids, gradients, lr):
    last = dict(zip(gather(ids).tolist(), gather(gradients), strict=True))
    for row, gradient in last.items():
        table[row] -= lr * gradient.sign()


def move_an_unused_row(table, ids, gradients, lr):
    used = set(gather(ids).tolist())
    gathering_step()(table, ids, gradients, lr)
    unused = [row for row in range(len(table)) if row not in used]
    table[unused[:1]] += 1e-6 * (dist.get_rank() == dist.get_world_size() - 1)


SOUND = {
    "gathers ids and gradients, sums, takes the sign once": gathering_step(),
    "the same, with the mean over the ranks": gathering_step(
        after_sum=lambda total: (total / dist.get_world_size()).sign()
    ),
    "all-reduces a gradient as large as the table": dense_step(),
    "rank 0 computes the table and broadcasts it": broadcast_by_rank_0,
}
UNSOUND = {
    "its own step, then those of all ranks": lambda table, ids, gradients, lr: sparse_step(
        table, ids.contiguous(), gradients.contiguous(), lr
    ),
    "sends nothing": local_step,
    "all-reduces the gradients and keeps its own ids": all_reduce_gradients,
    "adds the signs of all gradients": gathering_step(torch.sign, identity),
    "adds the signs of the ranks' sums": dense_step(torch.sign, identity),
    "lets the signs vote": gathering_step(torch.sign),
    "the last gradient of a row wins": last_gradient_wins,
    "moves by the gradient and not by its sign": gathering_step(after_sum=identity),
    "the last rank moves a row that no rank used, by 1e-6": move_an_unused_row,
}
VERSIONS = SOUND | UNSOUND


# ---- the learner's own step -----------------------------------------------------------------------------------------


REPEATED = "rows within and over ranks"
CANCELS = "the gradients of every row cancel"
SMALL_SUM = "a sum that is 0 in float32"
ROUNDS = "the sum depends on its order"
CASES = {  # the ids of all ranks, (world, BATCH), as functions of the number of ranks and a generator
    "each rank has rows of its own": lambda world, _: torch.arange(world * BATCH).view(world, BATCH),
    "all ranks have the same rows": lambda world, _: torch.arange(BATCH).repeat(world, 1),
    "each rank has one row four times": lambda world, _: torch.arange(world)[:, None].repeat(1, BATCH),
    REPEATED: lambda world, generator: torch.randint(5, (world, BATCH), generator=generator),
    CANCELS: lambda world, _: torch.arange(BATCH).repeat(world, 1),
    SMALL_SUM: lambda world, _: torch.zeros(world, BATCH, dtype=torch.int64),
    ROUNDS: lambda world, _: torch.zeros(world, BATCH, dtype=torch.int64),
}
ADDENDS = {  # of row 0: the first two gradients of rank 0, the first one of the last rank; all others are 0
    SMALL_SUM: (1 + 1e-9, 0.0, -1.0),
    ROUNDS: (1e16, -1e16, 1.0),  # 1e16 - 1e16 + 1 is 1, but 1 + 1e16 - 1e16 is 0
}


def batches(scenario, world):
    """For each step ids (world, BATCH) and gradients (world, BATCH, WIDTH) of all ranks."""
    for step in range(3 if scenario == REPEATED else 1):
        generator = torch.Generator().manual_seed(20 + step)
        ids = CASES[scenario](world, generator)
        gradients = torch.randn(world, BATCH, WIDTH, dtype=torch.float64, generator=generator)
        if scenario == CANCELS:
            gradients = (8 * gradients).round()  # whole numbers: their sum is 0 in any order
            gradients[1::2] = -gradients[::2]
        if scenario in ADDENDS:
            gradients.zero_()
            gradients[0, 0], gradients[0, 1], gradients[-1, 0] = ADDENDS[scenario]
        yield ids, gradients


def start():
    return torch.linspace(-1, 1, ROWS * WIDTH, dtype=torch.float64).view(ROWS, WIDTH)


def try_out(sparse_step, scenario):
    """The table after the steps of the scenario."""
    table, rank = start(), dist.get_rank()
    for ids, gradients in batches(scenario, dist.get_world_size()):
        sparse_step(table, ids[rank].clone(), gradients[rank].clone(), LR)
    return table


def one_process(scenario, world):
    """The right result of try_out: one process with the global batch."""
    table = start()
    for ids, gradients in batches(scenario, world):
        local_step(table, ids.flatten(), gradients.flatten(0, 1), LR)
    return table


# no_grad: a version changes the table in place, and the detector's table may require gradients.
drive = driver_of({name: torch.no_grad()(version) for name, version in VERSIONS.items()}, try_out)
