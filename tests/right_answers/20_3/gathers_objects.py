# route: hooks collect the gradients by row in a dictionary; one all_gather_object; rank 0 adds and broadcasts the moves

import torch
import torch.distributed as dist


class SparseTable(torch.nn.Module):
    def __init__(self, table, lr, weight_decay):
        super().__init__()
        self.table = table
        self.keep, self.lr = 1 - lr * weight_decay, lr
        self.gradients = {}

    def forward(self, ids):
        vectors = self.table[ids].clone()
        if torch.is_grad_enabled():
            vectors.requires_grad_().register_hook(lambda gradient: self.collect(ids, gradient))
        return vectors

    def collect(self, ids, gradient):
        for row, one in zip(ids.tolist(), gradient, strict=True):
            self.gradients[row] = self.gradients.get(row, 0) + one

    def step(self):
        mine = {row: gradient.tolist() for row, gradient in self.gradients.items()}
        everyones = [None] * dist.get_world_size()
        dist.gather_object(mine, everyones if dist.get_rank() == 0 else None)
        signs = [{}]
        if dist.get_rank() == 0:
            for row in {row for one in everyones for row in one}:
                gradients = [torch.tensor(one[row], dtype=self.table.dtype) for one in everyones if row in one]
                signs[0][row] = sum(gradients).sign().tolist()
        dist.broadcast_object_list(signs)
        with torch.no_grad():
            for row, sign in signs[0].items():
                self.table[row] = self.table[row] * self.keep - self.lr * self.table.new_tensor(sign)
        self.gradients = {}
