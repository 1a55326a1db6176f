"""A table sharded by rows: rank r owns the rows from bounds[r] up to bounds[r + 1]. It sends the whole table."""

from datetime import timedelta

import torch
import torch.distributed as dist


class ShardedTable:
    def __init__(self, shard, bounds, lr):
        self.shard, self.bounds, self.lr, self.sent_bytes = shard, bounds, lr, 0
        self.own, self.accumulator = torch.arange(*bounds[dist.get_rank() :][:2]), shard.new_zeros(len(shard))

    def summed(self, index, rows):
        """A tensor as large as the table, to which each rank has added its rows."""
        whole = self.shard.new_zeros(self.bounds[-1], self.shard.shape[1]).index_add_(0, index, rows)
        self.sent_bytes += whole.nbytes
        dist.all_reduce(whole)
        return whole

    def lookup(self, ids):
        self.ids = ids
        return self.summed(self.own, self.shard)[ids]

    def step(self, gradients):
        total = self.summed(self.ids, gradients)[self.own]
        self.accumulator += total.square().mean(dim=1)
        self.shard -= self.lr * total / (self.accumulator.sqrt() + 1e-8)[:, None]


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    table = ShardedTable(torch.zeros(500, 8), [500 * rank for rank in range(dist.get_world_size() + 1)], lr=0.1)
    table.step(torch.ones_like(table.lookup(torch.tensor([7, 7, 499, 7]))))
    print(f"rows moved {table.accumulator.count_nonzero()}, bytes {table.sent_bytes}", flush=True)
    dist.destroy_process_group()
