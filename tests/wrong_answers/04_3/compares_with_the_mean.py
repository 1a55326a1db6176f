# mistake: compares rank 0's tensor with the mean of all
# state: wrong
# check: different replicas raise everywhere
# message: rank 1 above, rank 2 as far below; with 3 ranks assert_replicas_equal raised on no rank

import torch
import torch.distributed as dist
from torch import nn


def assert_replicas_equal(model) -> None:
    """Raise AssertionError on every rank, naming the first parameter and rank that differ from rank 0's, if any do."""
    for name, parameter in model.named_parameters():
        mean = parameter.detach().clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        of_rank_0 = parameter.detach().clone()
        dist.broadcast(of_rank_0, src=0)
        if not (mean - of_rank_0).abs().max() < 1e-14:
            odd = torch.tensor(not torch.equal(parameter, of_rank_0))
            everyones = [torch.empty_like(odd) for _ in range(dist.get_world_size())]
            dist.all_gather(everyones, odd)
            rank = [bool(one) for one in everyones].index(True)
            raise AssertionError(f"replicas differ: {name} on rank {rank} is not that of rank 0")


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
