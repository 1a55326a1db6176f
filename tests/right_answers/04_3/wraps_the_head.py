# route: wraps the head alone; the detector gathers whole tensors

import torch
import torch.distributed as dist
from torch import nn


def assert_replicas_equal(model):
    for name, parameter in model.named_parameters():
        bits = parameter.detach().flatten().view(torch.int64)
        copies = [torch.empty_like(bits) for _ in range(dist.get_world_size())]
        dist.all_gather(copies, bits)
        for rank, copy in enumerate(copies):
            if not torch.equal(copy, copies[0]):
                raise AssertionError(f"{name}: rank {rank} != rank 0")


def train(model, batches):
    head = nn.parallel.DistributedDataParallel(model.head)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    losses = []
    for inputs, targets in batches:
        with torch.no_grad():
            hidden = torch.tanh(model.backbone(inputs))
        loss = nn.functional.mse_loss(head(hidden), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
