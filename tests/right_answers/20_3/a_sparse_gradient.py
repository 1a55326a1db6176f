# route: torch's own embedding with sparse gradients, gathered as coalesced pairs, rank by rank with broadcast

import torch
import torch.distributed as dist
from torch import nn


class SparseTable:
    def __init__(self, table, lr, weight_decay):
        self.weight = nn.Parameter(table.clone())
        self.lr, self.weight_decay = lr, weight_decay

    @property
    def table(self):
        return self.weight.data

    def __call__(self, ids):
        return nn.functional.embedding(ids, self.weight, sparse=True)

    def step(self):
        width, gradient = self.weight.shape[1], self.weight.grad
        self.weight.grad = None
        ids, values = torch.empty(0, dtype=torch.int64), self.table.new_empty(0, width)
        if gradient is not None:
            ids, values = gradient._indices()[0], gradient._values()
        sums = {}
        for source in range(dist.get_world_size()):
            count = torch.tensor(len(ids))
            dist.broadcast(count, source)
            mine = source == dist.get_rank()
            their_ids = ids.clone() if mine else torch.empty(int(count), dtype=torch.int64)
            theirs = values.contiguous() if mine else torch.empty(int(count), width, dtype=self.table.dtype)
            if count:
                dist.broadcast(their_ids, source)
                dist.broadcast(theirs, source)
            for row, value in zip(their_ids.tolist(), theirs, strict=True):
                sums[row] = sums[row] + value if row in sums else value.clone()
        for row, total in sums.items():
            self.table[row] = self.table[row] * (1 - self.lr * self.weight_decay) - self.lr * total.sign()
