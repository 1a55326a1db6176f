# mistake: sums in a tensor as large as the table and all-reduces it
# state: wrong
# check: traffic is that of the batch
# message: to one all_reduce

import torch
import torch.distributed as dist


def everyones_rows(rows):
    """The rows (n, ...) of all ranks, one after the other in the order of the ranks; n may differ."""
    count = torch.tensor([len(rows)])
    counts = [torch.empty_like(count) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, count)
    padded = rows.new_zeros(int(max(counts)), *rows.shape[1:])
    padded[: len(rows)] = rows
    received = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(received, padded)
    return torch.cat([part[: int(count)] for part, count in zip(received, counts, strict=True)])


class SparseTable:
    """A table of which a step sends, reads and writes the rows that it used, and no others."""

    def __init__(self, table, lr, weight_decay):
        self.table, self.lr, self.weight_decay = table, lr, weight_decay
        self.used = []

    def __call__(self, ids):
        """The rows of `ids` (n,): (n, width), through which autograd can go back."""
        vectors = self.table[ids]
        if torch.is_grad_enabled():
            vectors.requires_grad_()
            self.used.append((ids, vectors))
        return vectors

    @torch.no_grad()
    def step(self):
        """On every rank: row <- row * (1 - lr * weight_decay) - lr * sign(sum of its gradients)."""
        ids, gradients = [torch.empty(0, dtype=torch.int64)], [self.table.new_empty(0, self.table.shape[1])]
        for its_ids, vectors in self.used:
            if vectors.grad is not None:
                ids.append(its_ids)
                gradients.append(vectors.grad)
        self.used = []
        ids, gradients = torch.cat(ids), torch.cat(gradients)
        dense = torch.zeros_like(self.table).index_add_(0, ids, gradients)
        dist.all_reduce(dense)
        rows = everyones_rows(ids).unique()
        total = dense[rows]
        self.table[rows] = self.table[rows] * (1 - self.lr * self.weight_decay) - self.lr * total.sign()
