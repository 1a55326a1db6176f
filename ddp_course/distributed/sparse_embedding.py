"""A sparse embedding table: a step sends, reads and writes only the rows that it used."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_course.distributed.process_group import World


class SparseEmbedding(nn.Module):
    """A table of `rows` vectors of `width` numbers, one per id, trained without a gradient of the table's size.

    `forward(ids)`, ids of shape (batch,), returns (batch, width). In training mode the rows are a new leaf of
    autograd: its gradient has the size of the batch, and `SparseSignSGD` reads it from `used`.
    cast_to: the dtype of the output, such as bfloat16. The table and its gradients keep their own dtype, because
    bfloat16 would lose sums of many small gradients.

    Keep it outside the module that DDP wraps, and pass its output to that module. The table is a buffer, because DDP
    would all-reduce a parameter in full; inside DDP, a buffer would be broadcast in full in every forward pass.
    Build it on every rank from the same seed; rows are initialised with the standard deviation `std`.
    """

    def __init__(
        self,
        rows: int,
        width: int,
        std: float = 0.02,
        dtype: torch.dtype | None = None,
        cast_to: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.cast_to = cast_to
        self.register_buffer("table", torch.randn(rows, width, dtype=dtype) * std)
        self.used: list[tuple[Tensor, Tensor]] = []  # (ids, their vectors) since the last step

    def forward(self, ids: Tensor) -> Tensor:
        vectors = self.table[ids]
        if self.training and torch.is_grad_enabled():
            vectors.requires_grad_()
            self.used.append((ids, vectors))
        return vectors.to(self.cast_to or vectors.dtype)


class SparseSignSGD(torch.optim.Optimizer):
    """Sign-SGD with decoupled weight decay, on the rows of a `SparseEmbedding` that any rank has used.

    The gradients of all ranks for the same row are summed, the sign is taken once, and every rank applies the same
    step: row <- row * (1 - lr * weight_decay) - lr * sign(sum). So the replicas stay bit-equal, and a step equals
    that of one process on the global batch. The sign does not depend on the scale of a gradient, so a summed loss, a
    mean loss and a loss times the number of ranks give the same step.
    Ranks may have used different numbers of rows, or none. `step()` is a collective: call it on every rank.

    The step is that of the sparse embedding of Wang et al., "Hierarchical Reasoning Model" (2025); signSGD:
    Bernstein et al. (2018).
    """

    def __init__(self, embedding: SparseEmbedding, world: World, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__([embedding.table], {"lr": lr, "weight_decay": weight_decay})
        self.embedding, self.world = embedding, world

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        ids, gradients = gather_rows(self.world, *self._own_gradients())
        rows, row_of_id = ids.unique(return_inverse=True)
        summed = gradients.new_zeros(len(rows), gradients.shape[1])
        if summed.is_cuda:  # index_add_ is nondeterministic there: a sum near 0 could differ in sign between ranks
            summed.index_put_((row_of_id,), gradients, accumulate=True)
        else:
            summed.index_add_(0, row_of_id, gradients)
        group, table = self.param_groups[0], self.embedding.table
        kept = table[rows].mul_(1 - group["lr"] * group["weight_decay"])
        table[rows] = kept.add_(summed.sign(), alpha=-group["lr"])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the list of used rows. Call it after each step, like every optimizer's."""
        self.embedding.used.clear()

    def _own_gradients(self) -> tuple[Tensor, Tensor]:
        """This rank's ids and gradients; a forward pass without a backward adds nothing."""
        used = [(ids, vectors.grad) for ids, vectors in self.embedding.used if vectors.grad is not None]
        table = self.embedding.table
        no_ids = torch.empty(0, dtype=torch.int64, device=table.device)
        return (
            torch.cat([no_ids, *(ids for ids, _ in used)]),
            torch.cat([table.new_empty(0, table.shape[1]), *(gradient for _, gradient in used)]),
        )


def gather_rows(world: World, ids: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """All-gather ids (n,) and rows (n, width), concatenated in the order of the ranks; n may differ between ranks.

    all_gather needs equal shapes, so each rank pads to the largest n: world size x the largest n rows are sent.
    """
    if world.size == 1:
        return ids, rows
    own_count = torch.tensor([len(ids)], device=rows.device)
    counts = [torch.empty_like(own_count) for _ in range(world.size)]
    dist.all_gather(counts, own_count)
    counts = [int(count) for count in counts]
    gathered = []
    for part in (ids, rows):
        padded = part.new_zeros(max(counts), *part.shape[1:])
        padded[: len(part)] = part
        received = [torch.empty_like(padded) for _ in range(world.size)]
        dist.all_gather(received, padded)
        gathered.append(torch.cat([tensor[:count] for tensor, count in zip(received, counts, strict=True)]))
    return gathered[0], gathered[1]
