# mistake: divides the joint gradient by the norm of this rank's own
# state: wrong
# check: every step is the joint one
# message: in step 1 the weights on rank

import torch
import torch.distributed as dist


def average_gradients(weights):
    for weight in weights:
        dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()


def update(weights, optimizer, scaler, loss, limit):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    norm = torch.cat([weight.grad for weight in weights]).norm() / scaler.get_scale()
    average_gradients(weights)
    scaler.unscale_(optimizer)
    for weight in weights:
        weight.grad *= min(1.0, limit / norm.item())
    scaler.step(optimizer)
    scaler.update()
    return norm.item()


def train(inputs, targets, limit):
    weights = [torch.zeros(2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
    for weight in weights:
        weight.requires_grad_()
    optimizer = torch.optim.SGD(weights, lr=0.5)
    scaler = torch.amp.GradScaler("cpu")
    path = []
    for batch, target in zip(inputs, targets, strict=True):
        loss = (batch @ weights[0] + weights[1] - target).square().mean()
        norm = update(weights, optimizer, scaler, loss, limit)
        path.append([torch.cat(weights).tolist(), norm])
    return path


def is_right(update):
    good = torch.ones(())
    for size in (0.001, 1000.0):
        rows = size * torch.tensor([[3.0, -1.0, 2.0], [-1.0, 5.0, 0.5], [0.0, 2.0, -4.0]], dtype=torch.float64)
        chosen = rows[dist.get_rank() % 3]
        weights = [torch.zeros(2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
        for weight in weights:
            weight.requires_grad_()
        optimizer = torch.optim.SGD(weights, lr=1.0)
        update(weights, optimizer, torch.amp.GradScaler("cpu"), (torch.cat(weights) * chosen).sum(), 1.0)
        joint = torch.stack([rows[rank % 3] for rank in range(dist.get_world_size())]).mean(0)
        expected = -joint * min(1.0, 1.0 / joint.norm().item())
        good *= torch.allclose(torch.cat(weights).detach(), expected, rtol=1e-4, atol=0.0)
    dist.all_reduce(good, op=dist.ReduceOp.MIN)
    return bool(good)
