# mistake: gathers ids and gradients as if all ranks had equally many
# state: crashed
# check: dies
# message: all_gather

import torch
import torch.distributed as dist


def everyones_rows(rows):
    received = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(received, rows)
    return torch.cat(received)


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
        ids, gradients = everyones_rows(torch.cat(ids)), everyones_rows(torch.cat(gradients))
        rows, place = ids.unique(return_inverse=True)
        total = gradients.new_zeros(len(rows), gradients.shape[1]).index_add_(0, place, gradients)
        self.table[rows] = self.table[rows] * (1 - self.lr * self.weight_decay) - self.lr * total.sign()
