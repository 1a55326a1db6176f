# route: trains with plain SGD and compares losses; the repair divides first

import torch
import torch.distributed as dist
from torch import nn


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).double()


def batch(rank):
    inputs = torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
    return inputs, inputs.sum(1, keepdim=True).sin()


def train(inputs, targets, synchronize):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        synchronize(model)
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def gradients_are_right(synchronize):
    together = train(*batch(dist.get_rank()), synchronize)
    batches = [batch(rank) for rank in range(dist.get_world_size())]
    alone = train(torch.cat([one[0] for one in batches]), torch.cat([one[1] for one in batches]), lambda model: None)
    verdicts = [None] * dist.get_world_size()
    dist.all_gather_object(verdicts, torch.allclose(together, alone, rtol=1e-6, atol=1e-8))
    return all(verdicts)


def synchronize_gradients(model):
    for parameter in model.parameters():
        parameter.grad = parameter.grad / dist.get_world_size()
    for work in [dist.all_reduce(parameter.grad, async_op=True) for parameter in model.parameters()]:
        work.wait()
