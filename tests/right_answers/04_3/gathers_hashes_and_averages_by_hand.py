# route: gathers a hash of every tensor; averages the gradients by hand, and no wrapper

import hashlib

import torch
import torch.distributed as dist
from torch import nn


class ReplicasDiffer(RuntimeError):
    pass


def assert_replicas_equal(model):
    mine = [(name, hashlib.md5(p.detach().numpy().tobytes()).hexdigest()) for name, p in model.named_parameters()]
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, mine)
    for column in zip(*everyones, strict=True):
        for rank, entry in enumerate(column):
            if entry != column[0]:
                raise ReplicasDiffer(f"Rank {rank} and rank 0 have different values in {entry[0]!r}")


def train(model, batches):
    assert_replicas_equal(model)
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)
    losses = []
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        (loss / dist.get_world_size()).backward()
        for parameter in model.head.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert_replicas_equal(model)
    return losses
