"""Inside a rank, for 20.1: hand the learner's detector sound and unsound steps, and try the learner's own."""

import torch
import torch.distributed as dist

from ddp_course.grader.harness.counted import counted

LR, ROWS, WIDTH, BATCH = 0.125, 20, 2, 4


def drive(function, what, *arguments):
    """`function` is the learner's is_joint_step or, for what="own", sparse_step."""
    return try_out(function, *arguments) if what == "own" else function(counted(VERSIONS[what], *arguments))


# ---- versions of sparse_step(table, ids, gradients, lr) -------------------------------------------------------------


def gathered(tensor):
    received = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(received, tensor.contiguous())
    return torch.cat(received)


def summed(ids, gradients):
    """Each id once, and the sum of its gradients."""
    rows, index = ids.unique(return_inverse=True)
    return rows, gradients.new_zeros(len(rows), gradients.shape[1]).index_add_(0, index, gradients)


def once(table, ids, gradients, lr, parts=1):
    rows, total = summed(gathered(ids), gathered(gradients))
    table[rows] -= lr * (total / parts).sign()


def mean_over_ranks(table, ids, gradients, lr):
    once(table, ids, gradients, lr, dist.get_world_size())


def dense(table, ids, gradients, lr):
    total = torch.zeros_like(table).index_add_(0, ids, gradients)
    dist.all_reduce(total)
    table -= lr * total.sign()


def broadcast_by_rank_0(table, ids, gradients, lr):
    ids, gradients = gathered(ids), gathered(gradients)
    if dist.get_rank() == 0:
        rows, total = summed(ids, gradients)
        table[rows] -= lr * total.sign()
    whole = table.detach().contiguous()
    dist.broadcast(whole, 0)
    table.copy_(whole)


def own_twice(table, ids, gradients, lr):
    world, ids_of, gradients_of = dist.get_world_size(), gathered(ids), gathered(gradients)
    table[ids] -= lr * gradients.sign()
    for their_ids, their_gradients in zip(ids_of.chunk(world), gradients_of.chunk(world), strict=True):
        table[their_ids] -= lr * their_gradients.sign()


def nothing_sent(table, ids, gradients, lr):
    rows, total = summed(ids, gradients)
    table[rows] -= lr * total.sign()


def reduced_by_place(table, ids, gradients, lr):
    gradients = gradients.clone()
    dist.all_reduce(gradients)
    nothing_sent(table, ids, gradients, lr)


def sign_of_each(table, ids, gradients, lr):
    rows, total = summed(gathered(ids), gathered(gradients.sign()))
    table[rows] -= lr * total


def sign_of_each_rank(table, ids, gradients, lr):
    signs = torch.zeros_like(table).index_add_(0, ids, gradients).sign()
    dist.all_reduce(signs)
    table -= lr * signs


def majority(table, ids, gradients, lr):
    rows, total = summed(gathered(ids), gathered(gradients.sign()))
    table[rows] -= lr * total.sign()


def last_wins(table, ids, gradients, lr):
    last = dict(zip(gathered(ids).tolist(), gathered(gradients), strict=True))
    for row, gradient in last.items():
        table[row] -= lr * gradient.sign()


def no_sign(table, ids, gradients, lr):
    rows, total = summed(gathered(ids), gathered(gradients))
    table[rows] -= lr * total


def one_rank_moves_more(table, ids, gradients, lr):
    used = set(gathered(ids).tolist())
    once(table, ids, gradients, lr)
    for row in [row for row in range(len(table)) if row not in used][:1]:
        table[row] += 1e-6 * (dist.get_rank() == dist.get_world_size() - 1)


def without_graph(step):
    """`step` as it is, also for a table that asks for gradients."""

    def call(*arguments):
        with torch.no_grad():
            step(*arguments)

    return call


VERSIONS = {
    "gathers ids and gradients, sums, takes the sign once": without_graph(once),
    "the same, with the mean over the ranks": without_graph(mean_over_ranks),
    "all-reduces a gradient as large as the table": without_graph(dense),
    "rank 0 computes the table and broadcasts it": without_graph(broadcast_by_rank_0),
    "the own update, then everybody's": without_graph(own_twice),
    "sends nothing": without_graph(nothing_sent),
    "all-reduces the gradients and keeps its own ids": without_graph(reduced_by_place),
    "adds the signs of all gradients": without_graph(sign_of_each),
    "adds the signs of the ranks' sums": without_graph(sign_of_each_rank),
    "lets the signs vote": without_graph(majority),
    "the last gradient of a row wins": without_graph(last_wins),
    "moves by the gradient and not by its sign": without_graph(no_sign),
    "the last rank moves a row that nobody used, by 1e-6": without_graph(one_rank_moves_more),
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


def try_out(sparse_step, what):
    table, rank = start(), dist.get_rank()
    for step in range(CASES[what]):
        ids, gradients = batch(what, dist.get_world_size(), step)
        sparse_step(table, ids[rank].clone(), gradients[rank].clone(), LR)
    return table


def one_process(what, world):
    """The right result of try_out: one process with the global batch."""
    table = start()
    for step in range(CASES[what]):
        ids, gradients = batch(what, world, step)
        rows, total = summed(ids.flatten(), gradients.flatten(0, 1))
        table[rows] -= LR * total.sign()
    return table
