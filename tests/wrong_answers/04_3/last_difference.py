# mistake: goes on to the last difference
# state: wrong
# check: the first difference is named
# message: it should name head.weight and rank 1

import torch
import torch.distributed as dist
from torch import nn


def assert_replicas_equal(model) -> None:
    """Raise AssertionError on every rank, naming the first parameter and rank that differ from rank 0's, if any do."""
    found = None
    for name, parameter in model.named_parameters():
        bits = parameter.detach().flatten().view(torch.uint8)
        of_rank_0 = bits.clone()
        dist.broadcast(of_rank_0, src=0)
        equal = torch.tensor([torch.equal(bits, of_rank_0)])
        everyones = [torch.empty_like(equal) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, equal)
        for rank, one in enumerate(everyones):
            if not one:
                found = f"replicas differ: {name} on rank {rank} is not that of rank 0"
    assert found is None, found


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
