"""Inside a rank, for 20.3: train with the learner's sparse table, and watch how large the tensors are that it makes."""

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LR, DECAY = 0.125, 0.5
ROWS, WIDTH = 9, 3
LARGE_ROWS, LARGE_WIDTH = 60_000, 8  # float32: 1,920,000 bytes

# For each step the ids of each rank, a list for each forward pass. Row 0 and the last one are never used.
SAME = [[[[1, 2, 3]], [[3, 4, 5]]]]
TWICE = [[[[1, 1, 2, 1]], [[2, 1, 2, 2]]]]
UNEVEN = [[[[1, 2, 3, 4, 4]], [[5]]], [[[6]], [[7, 7, 6, 2]]]]
EMPTY = [[[[1, 2]], [[]]], [[[]], [[3]]]]
ABSENT = [[[[1, 2]], []], [[], [[3, 3]]]]
NOBODY = [[[[1, 2]], [[3]]], [[], []], [[[]], []]]
MICRO = [[[[1, 2], [2, 3]], [[4], [5, 1]]], [[[7]], [[6]]]]
THREE = [[[[1, 2, 3]], [[3]], [[]]], [[], [[4, 4]], [[1]]]]
FOUR = [[[[1, 2]], [], [[2, 3, 3]], [[5]]], [[[6]], [[6, 7]], [[]], [[1, 6]]]]
CASES = {
    "3 ids on each rank": SAME,
    "rows that occur more than once": TWICE,
    "5 ids and 1, then 1 and 4": UNEVEN,
    "one rank has an empty batch": EMPTY,
    "one rank makes no forward pass": ABSENT,
    "a step in which nobody used a row": NOBODY,
    "two micro-batches before the step": MICRO,
    "three ranks": THREE,
    "four ranks": FOUR,
}
EVALUATES, ROUNDS = "rows that are read and not trained on", "the sum depends on its order"
CANCELS = "gradients of zero, and gradients that cancel"
LARGE = "60,000 rows"


def drive(build, what):
    """`build` is the learner's SparseTable."""
    other = {EVALUATES: evaluates, ROUNDS: rounds, CANCELS: cancels, LARGE: large}
    return other[what](build) if what in other else train(build, what)


def start(rows=ROWS, width=WIDTH, dtype=torch.float64):
    return torch.linspace(-1, 1, rows * width, dtype=torch.float64).to(dtype).view(rows, width)


def loss_of(vectors, step, rank, number):
    """A loss whose gradient depends on the vectors, on the place in the batch, and on who asks."""
    numbers = torch.Generator().manual_seed(1000 * step + 10 * rank + number)
    factors = torch.randn(vectors.shape, generator=numbers, dtype=torch.float64).to(vectors.dtype)
    return (torch.sin(2 * vectors) * factors).sum()


def ids_of(ids):
    return torch.tensor(ids, dtype=torch.int64)


# ---- is it one training? --------------------------------------------------------------------------------------------


def train(build, what):
    """The table after each step."""
    rank, tables = dist.get_rank(), []
    sparse = build(start(), lr=LR, weight_decay=DECAY)
    for step, ranks in enumerate(CASES[what]):
        for number, ids in enumerate(ranks[rank]):
            loss_of(sparse(ids_of(ids)), step, rank, number).backward()
        sparse.step()
        tables.append(sparse.table.detach().clone())
    return {"tables": tables}


def one_process(what):
    """The right result of train: one process that takes the batches of all ranks."""
    table, tables = start(), []
    for step, ranks in enumerate(CASES[what]):
        table = table.clone().requires_grad_()
        loss, used = torch.zeros((), dtype=torch.float64), torch.zeros(ROWS, dtype=torch.bool)
        for rank, batches in enumerate(ranks):
            for number, ids in enumerate(batches):
                loss = loss + loss_of(table[ids_of(ids)], step, rank, number)
                used[ids_of(ids)] = True
        gradient = torch.autograd.grad(loss, table)[0] if loss.requires_grad else torch.zeros_like(table)
        table = table.detach()
        table = torch.where(used[:, None], table * (1 - LR * DECAY) - LR * gradient.sign(), table)
        tables.append(table)
    return tables


def evaluates(build):
    """Rows that were read, and never trained on, in the same step as others; and the vectors that came back."""
    sparse = build(start(), lr=LR, weight_decay=DECAY)
    with torch.no_grad():
        evaluated = sparse(ids_of([4, 5, 5])).detach().clone()
    sparse(ids_of([6]))  # a forward pass that no backward follows
    vectors = sparse(ids_of([2, 1, 2]))
    trained = vectors.detach().clone()
    vectors.sum().backward()
    sparse.step()
    return {"evaluated": evaluated, "trained": trained, "tables": [sparse.table.detach().clone()]}


def rounds(build):
    """1e16 - 1e16 + 1 is 1, but 1 + 1e16 - 1e16 is 0: the order of a sum decides about its sign."""
    sparse, last = build(start(), lr=LR, weight_decay=DECAY), dist.get_rank() == dist.get_world_size() - 1
    factors = [1.0, 0.0] if last else [1e16, -1e16]
    vectors = sparse(ids_of([3, 3]))
    (vectors * torch.tensor(factors, dtype=torch.float64)[:, None]).sum().backward()
    sparse.step()
    return {"tables": [sparse.table.detach().clone()]}


def cancels(build):
    """Rows 3 and 5 have gradients, the sum of which is zero: they decay, and do not move otherwise."""
    sparse = build(start(), lr=LR, weight_decay=DECAY)
    factors = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)[:, None]
    vectors = sparse(ids_of([3, 3, 5]))
    (vectors * factors[: len(vectors)]).sum().backward()
    sparse.step()
    return {"tables": [sparse.table.detach().clone()]}


# ---- how much work is a step? ---------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """While active, keeps the bytes of the largest tensor that was made anew, and the name of what made it."""

    def __init__(self):
        super().__init__()
        self.bytes, self.made_by = 0, ""

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # as in record.py

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        inputs = {storage_of(leaf) for leaf in tree_leaves((args, kwargs)) if is_dense(leaf)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if is_dense(leaf) and storage_of(leaf) not in inputs and leaf.nbytes > self.bytes:
                self.bytes, self.made_by = leaf.nbytes, func._schema.name.partition("::")[2]
        return result


def is_dense(leaf):
    return torch.is_tensor(leaf) and leaf.layout == torch.strided


def storage_of(tensor):
    return tensor.untyped_storage().data_ptr()


def large(build):
    """Two steps with 4 ids or fewer on a large table: the largest tensor that each made."""
    rank, world = dist.get_rank(), dist.get_world_size()
    sparse = build(start(LARGE_ROWS, LARGE_WIDTH, torch.float32), lr=LR, weight_decay=DECAY)
    largest = Largest()
    with largest:
        for step in range(2):
            ids = (torch.arange(4 - rank) + 7) * 1000 * (step + world) % LARGE_ROWS
            loss_of(sparse(ids), step, rank, 0).backward()
            sparse.step()
    return {"bytes": largest.bytes, "made_by": largest.made_by}
