# mistake: train returns the last loss alone
# state: wrong
# check: equals one process
# message: on rank 0; before each update the loss of this rank's batch was [

import torch
import torch.distributed as dist
from torch import nn


def assert_replicas_equal(model) -> None:
    """Raise AssertionError on every rank, naming the first parameter and rank that differ from rank 0's, if any do."""
    for name, parameter in model.named_parameters():
        bits = parameter.detach().flatten().view(torch.uint8)
        of_rank_0 = bits.clone()
        dist.broadcast(of_rank_0, src=0)
        equal = torch.tensor([torch.equal(bits, of_rank_0)])
        everyones = [torch.empty_like(equal) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, equal)  # all ranks learn what one has found, and raise together
        for rank, one in enumerate(everyones):
            assert one, f"replicas differ: {name} on rank {rank} is not that of rank 0"


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
    return losses[-1]
