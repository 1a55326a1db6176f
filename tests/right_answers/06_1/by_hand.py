# route: no wrapper; all gradients in one message before the step; the detector compares smallest and largest

import torch
import torch.distributed as dist
from torch import nn


def replicas_agree(train):
    torch.manual_seed(5)
    module = nn.Bilinear(3, 1, 1)
    forward = module.forward
    module.forward = lambda inputs, targets: forward(inputs, targets).square().mean()
    torch.manual_seed(dist.get_rank())
    micro_batches = [(torch.randn(2, 3), torch.randn(2, 1)) for _ in range(4)]
    train(module, torch.optim.AdamW(module.parameters(), lr=0.01), micro_batches, 2)
    low = nn.utils.parameters_to_vector(module.parameters()).detach()
    high = low.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return float((high - low).max()) < 1e-9


def train(module, optimizer, micro_batches, accumulate):
    weights = list(module.parameters())
    while micro_batches:
        now, micro_batches = micro_batches[:accumulate], micro_batches[accumulate:]
        total = sum(module(*one) for one in now) / (len(now) * dist.get_world_size())
        gradients = torch.autograd.grad(total, weights)
        flat = torch.cat([one.flatten() for one in gradients])
        dist.all_reduce(flat)
        for weight, piece in zip(weights, flat.split([one.numel() for one in weights]), strict=True):
            weight.grad = piece.view_as(weight)
        optimizer.step()
