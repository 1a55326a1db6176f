# mistake: compares floats: 0.0 equals -0.0, whose bits differ
# state: wrong
# check: different replicas raise everywhere
# message: head.bias is 0.0 on ranks 0 and 2, -0.0 on rank 1; with 3 ranks assert_replicas_equal raised on no rank

import torch
import torch.distributed as dist
from torch import nn


def assert_replicas_equal(model) -> None:
    """Raise AssertionError on every rank, naming the first parameter and rank that differ from rank 0's, if any do."""
    for name, parameter in model.named_parameters():
        of_rank_0 = parameter.detach().clone()
        dist.broadcast(of_rank_0, src=0)
        equal = torch.tensor([torch.equal(parameter, of_rank_0)])
        everyones = [torch.empty_like(equal) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, equal)  # all ranks learn what one has found, and raise together
        for rank, one in enumerate(everyones):
            assert one, f"replicas differ: {name} on rank {rank} is not that of rank 0"


def train(model, batches):
    """One update a batch; returns the loss before each."""
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    losses = []
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for parameter in model.head.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()
        losses.append(loss.item())
    return losses
