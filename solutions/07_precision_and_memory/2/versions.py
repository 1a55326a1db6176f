"""Training loops for 07.2. The ranks import this file, so it imports nothing of the grader."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.functional import linear


@dataclass
class Recorded:
    """A loop that trains nothing: it returns made-up histories, one for each rank, and starts no collective."""

    histories: list

    def __call__(self, batches, scale):
        return self.histories[dist.get_rank()]


@dataclass
class Loop:
    """`train` of given.py without its `if`. scale_by_rank: the initial scale of each rank; empty: the argument's."""

    scale_by_rank: tuple = ()

    def __call__(self, batches, scale):
        weight = torch.zeros(1, 2, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.05)
        initial_scale = self.scale_by_rank[dist.get_rank()] if self.scale_by_rank else scale
        scaler = torch.amp.GradScaler("cpu", init_scale=initial_scale)
        history = []
        for inputs, targets in batches:
            with torch.autocast("cpu", torch.float16):
                loss = (linear(inputs, weight) - targets).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()
            scaler.step(optimizer)
            scaler.update()
            history.append([weight[0].tolist(), scaler.get_scale()])
        return history
