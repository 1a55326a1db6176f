"""Inside a rank, for 20.1: hand the learner's detector sound and unsound steps, and try the learner's own."""

import torch
import torch.distributed as dist

from ddp_course.grader.harness.counted import counted

from .given import everyones, sparse_step

LR, ROWS, WIDTH, BATCH = 0.125, 20, 2, 4


def drive(function, what, *arguments):
    """`function` is the learner's is_joint_step or, for what="own", sparse_step."""
    if what == "own":
        return try_out(function, *arguments)
    # As it is, also for a table that asks for gradients.
    return function(counted(torch.no_grad()(VERSIONS[what]), *arguments))


# ---- versions of sparse_step(table, ids, gradients, lr) -------------------------------------------------------------


def gathered(tensor):
    return torch.cat(everyones(tensor.contiguous()))


def summed(ids, gradients):
    """Each id once, and the sum of its gradients."""
    rows, index = ids.unique(return_inverse=True)
    return rows, gradients.new_zeros(len(rows), gradients.shape[1]).index_add_(0, index, gradients)


def same(tensor):
    return tensor


def gathers(first=same, last=torch.sign):
    """A step that sums the gradients of all ranks: `first` is done to each of them, `last` to each sum."""

    def step(table, ids, gradients, lr):
        rows, total = summed(gathered(ids), gathered(first(gradients)))
        table[rows] -= lr * last(total)

    return step


def dense(first=same, last=torch.sign):
    """The same by an all-reduce of a gradient as large as the table; `first` is done to each rank's sums."""

    def step(table, ids, gradients, lr):
        total = first(torch.zeros_like(table).index_add_(0, ids, gradients))
        dist.all_reduce(total)
        table -= lr * last(total)

    return step


def broadcast_by_rank_0(table, ids, gradients, lr):
    ids, gradients = gathered(ids), gathered(gradients)
    if dist.get_rank() == 0:
        nothing_sent(table, ids, gradients, lr)
    whole = table.detach().contiguous()
    dist.broadcast(whole, 0)
    table.copy_(whole)


def nothing_sent(table, ids, gradients, lr):
    rows, total = summed(ids, gradients)
    table[rows] -= lr * total.sign()


def reduced_by_place(table, ids, gradients, lr):
    gradients = gradients.clone()
    dist.all_reduce(gradients)
    nothing_sent(table, ids, gradients, lr)


def last_wins(table, ids, gradients, lr):
    last = dict(zip(gathered(ids).tolist(), gathered(gradients), strict=True))
    for row, gradient in last.items():
        table[row] -= lr * gradient.sign()


def one_rank_moves_more(table, ids, gradients, lr):
    used = set(gathered(ids).tolist())
    gathers()(table, ids, gradients, lr)
    for row in [row for row in range(len(table)) if row not in used][:1]:
        table[row] += 1e-6 * (dist.get_rank() == dist.get_world_size() - 1)


VERSIONS = {
    "gathers ids and gradients, sums, takes the sign once": gathers(),
    "the same, with the mean over the ranks": gathers(last=lambda total: (total / dist.get_world_size()).sign()),
    "all-reduces a gradient as large as the table": dense(),
    "rank 0 computes the table and broadcasts it": broadcast_by_rank_0,
    "the own update, then everybody's": lambda table, ids, gradients, lr: sparse_step(
        table, ids.contiguous(), gradients.contiguous(), lr
    ),
    "sends nothing": nothing_sent,
    "all-reduces the gradients and keeps its own ids": reduced_by_place,
    "adds the signs of all gradients": gathers(torch.sign, same),
    "adds the signs of the ranks' sums": dense(torch.sign, same),
    "lets the signs vote": gathers(torch.sign),
    "the last gradient of a row wins": last_wins,
    "moves by the gradient and not by its sign": gathers(last=same),
    "the last rank moves a row that nobody used, by 1e-6": one_rank_moves_more,
}


# ---- the learner's own step -----------------------------------------------------------------------------------------


def batch(what, world, step):
    """ids (world, BATCH) and gradients (world, BATCH, WIDTH) of all ranks."""
    generator = torch.Generator().manual_seed(20 + step)
    ids = torch.randint(5, (world, BATCH), generator=generator)
    gradients = torch.randn(world, BATCH, WIDTH, dtype=torch.float64, generator=generator)
    if what == "each rank has rows of its own":
        ids = torch.arange(world * BATCH).view(world, BATCH)
    if what == "all ranks have the same rows":
        ids = torch.arange(BATCH).expand(world, BATCH).clone()
    if what == "each rank has one row four times":
        ids = torch.arange(world).unsqueeze(1).expand(world, BATCH).clone()
    if what == CANCELS:
        ids = torch.arange(BATCH).expand(world, BATCH).clone()
        gradients = (8 * gradients).round()  # whole numbers: their sum is 0 in any order
        gradients[1::2] = -gradients[::2]
    if what == FINE:
        ids, gradients = torch.zeros_like(ids), torch.zeros_like(gradients)
        gradients[0, 0], gradients[-1, 1] = 1 + 1e-9, -1.0
    if what == ROUNDS:
        # 1e16 - 1e16 + 1 is 1, but 1 + 1e16 - 1e16 is 0.
        ids, gradients = torch.zeros_like(ids), torch.zeros_like(gradients)
        gradients[0, 0], gradients[0, 1], gradients[-1, 0] = 1e16, -1e16, 1.0
    return ids, gradients


ROUNDS = "the sum depends on its order"
CANCELS = "the gradients of every row cancel"
FINE = "a sum that is 0 in float32"
CASES = {  # steps
    "each rank has rows of its own": 1,
    "all ranks have the same rows": 1,
    "each rank has one row four times": 1,
    "rows within and over ranks": 3,
    CANCELS: 1,
    FINE: 1,
    ROUNDS: 1,
}


def start():
    return torch.linspace(-1, 1, ROWS * WIDTH, dtype=torch.float64).view(ROWS, WIDTH)


def try_out(own_step, what):
    table, rank = start(), dist.get_rank()
    for step in range(CASES[what]):
        ids, gradients = batch(what, dist.get_world_size(), step)
        own_step(table, ids[rank].clone(), gradients[rank].clone(), LR)
    return table


def one_process(what, world):
    """The right result of try_out: one process with the global batch."""
    table = start()
    for step in range(CASES[what]):
        ids, gradients = batch(what, world, step)
        nothing_sent(table, ids.flatten(), gradients.flatten(0, 1), LR)
    return table
