# mistake: each rank compares with rank 0 and raises alone
# state: wrong
# check: different replicas raise everywhere
# message: raised on 1 of them, not on rank 0

import torch
import torch.distributed as dist
from torch import nn


def assert_replicas_equal(model) -> None:
    """Raise AssertionError on every rank, naming the first parameter and rank that differ from rank 0's, if any do."""
    different = []
    for name, parameter in model.named_parameters():
        of_rank_0 = parameter.detach().clone()
        dist.broadcast(of_rank_0, src=0)
        if not torch.equal(parameter, of_rank_0):
            different.append(name)
    if different:
        raise AssertionError(f"replicas differ: {different[0]} on rank {dist.get_rank()} is not rank 0's")


def train(model, batches):
    """One update a batch; returns the loss before each."""
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    losses = []
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(wrapped(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
