"""Inside a rank, for 20.3: train with the learner's sparse table, and note the largest tensor that it makes."""

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LR, DECAY = 0.125, 0.5
ROWS, WIDTH = 9, 3
LARGE_ROWS, LARGE_WIDTH = 60_000, 8  # float32: 1,920,000 bytes

# For each step the ids of each rank, a list for each forward pass. Row 0 and the last one are never used.
CASES = {
    "3 ids on each rank": [[[[1, 2, 3]], [[3, 4, 5]]]],
    "rows that occur more than once": [[[[1, 1, 2, 1]], [[2, 1, 2, 2]]]],
    "5 ids and 1, then 1 and 4": [[[[1, 2, 3, 4, 4]], [[5]]], [[[6]], [[7, 7, 6, 2]]]],
    "one rank has an empty batch": [[[[1, 2]], [[]]], [[[]], [[3]]]],
    "one rank makes no forward pass": [[[[1, 2]], []], [[], [[3, 3]]]],
    "a step in which no rank used a row": [[[[1, 2]], [[3]]], [[], []], [[[]], []]],
    "two micro-batches before the step": [[[[1, 2], [2, 3]], [[4], [5, 1]]], [[[7]], [[6]]]],
    "three ranks": [[[[1, 2, 3]], [[3]], [[]]], [[], [[4, 4]], [[1]]]],
    "four ranks": [[[[1, 2]], [], [[2, 3, 3]], [[5]]], [[[6]], [[6, 7]], [[]], [[1, 6]]]],
}
EVALUATES, ROUNDS = "rows that are read and not trained on", "the sum depends on its order"
CANCELS = "gradients of zero, and gradients that cancel"
LARGE = "60,000 rows"


def drive(build, scenario):
    """The report of training in this scenario; `build` is the learner's SparseTable."""
    special = {
        EVALUATES: train_and_evaluate,
        ROUNDS: train_with_rounding,
        CANCELS: train_with_cancelling,
        LARGE: train_large,
    }
    return special[scenario](build) if scenario in special else train(build, scenario)


def start(rows=ROWS, width=WIDTH, dtype=torch.float64):
    return torch.linspace(-1, 1, rows * width, dtype=torch.float64).to(dtype).view(rows, width)


def loss_of(vectors, step, rank, micro_batch):
    """A loss whose gradient depends on the vectors and differs by their place, step, rank and micro-batch."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank + micro_batch)
    factors = torch.randn(vectors.shape, generator=generator, dtype=torch.float64).to(vectors.dtype)
    return (torch.sin(2 * vectors) * factors).sum()


def ids_tensor(ids):
    return torch.tensor(ids, dtype=torch.int64)


# ---- equal to one process ------------------------------------------------------------------------------------------


def train(build, scenario):
    """The table after each step."""
    rank, tables = dist.get_rank(), []
    sparse = build(start(), lr=LR, weight_decay=DECAY)
    for step, batches_by_rank in enumerate(CASES[scenario]):
        for micro_batch, ids in enumerate(batches_by_rank[rank]):
            loss_of(sparse(ids_tensor(ids)), step, rank, micro_batch).backward()
        sparse.step()
        tables.append(sparse.table.detach().clone())
    return {"tables": tables}


def one_process(scenario):
    """The right result of train: one process that takes the batches of all ranks."""
    table, tables = start(), []
    for step, batches_by_rank in enumerate(CASES[scenario]):
        table = table.clone().requires_grad_()
        loss, used = torch.zeros((), dtype=torch.float64), torch.zeros(ROWS, dtype=torch.bool)
        for rank, batches in enumerate(batches_by_rank):
            for micro_batch, ids in enumerate(batches):
                loss = loss + loss_of(table[ids_tensor(ids)], step, rank, micro_batch)
                used[ids_tensor(ids)] = True
        gradient = torch.autograd.grad(loss, table)[0] if loss.requires_grad else torch.zeros_like(table)
        table = table.detach()
        table = torch.where(used[:, None], table * (1 - LR * DECAY) - LR * gradient.sign(), table)
        tables.append(table)
    return tables


def train_and_evaluate(build):
    """The vectors of rows that are only read and of rows that are trained on, and the table after that one step."""
    sparse = build(start(), lr=LR, weight_decay=DECAY)
    with torch.no_grad():
        evaluated = sparse(ids_tensor([4, 5, 5])).detach().clone()
    sparse(ids_tensor([6]))  # a forward pass that no backward follows
    vectors = sparse(ids_tensor([2, 1, 2]))
    trained = vectors.detach().clone()
    vectors.sum().backward()
    sparse.step()
    return {"evaluated": evaluated, "trained": trained, "tables": [sparse.table.detach().clone()]}


def train_with_rounding(build):
    """The table after a step with 1e16, -1e16 and 1 as gradients of a row: their sum is 1 or 0, by its order."""
    sparse, last = build(start(), lr=LR, weight_decay=DECAY), dist.get_rank() == dist.get_world_size() - 1
    factors = [1.0, 0.0] if last else [1e16, -1e16]
    vectors = sparse(ids_tensor([3, 3]))
    (vectors * torch.tensor(factors, dtype=torch.float64)[:, None]).sum().backward()
    sparse.step()
    return {"tables": [sparse.table.detach().clone()]}


def train_with_cancelling(build):
    """The table after a step in which the gradients of rows 3 and 5 add up to zero: both only decay."""
    sparse = build(start(), lr=LR, weight_decay=DECAY)
    factors = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)[:, None]
    vectors = sparse(ids_tensor([3, 3, 5]))
    (vectors * factors[: len(vectors)]).sum().backward()
    sparse.step()
    return {"tables": [sparse.table.detach().clone()]}


# ---- the size of its tensors ----------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """Notes the bytes of the largest tensor that is allocated while it is active, and the operation that made it."""

    def __init__(self):
        super().__init__()
        self.bytes, self.made_by = 0, ""

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # as in ddp_course/grader/harness/record.py

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


def train_large(build):
    """The bytes of the largest tensor made in two steps with 4 ids or fewer on a large table, and what made it."""
    rank, world = dist.get_rank(), dist.get_world_size()
    sparse = build(start(LARGE_ROWS, LARGE_WIDTH, torch.float32), lr=LR, weight_decay=DECAY)
    largest = Largest()
    with largest:
        for step in range(2):
            ids = (torch.arange(4 - rank) + 7) * 1000 * (step + world) % LARGE_ROWS
            loss_of(sparse(ids), step, rank, 0).backward()
            sparse.step()
    return {"bytes": largest.bytes, "made_by": largest.made_by}
