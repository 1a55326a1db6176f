"""Inside a rank, for 07.1: call the learner's update with an optimizer that has a memory, which train's has not."""

import torch

MOMENTUM = 0.9


def drive(update, inputs, targets, limit):
    """`train` as in given.py, with momentum. By step: [the three weights, the norm]."""
    weights = [torch.zeros(size, dtype=torch.float64, requires_grad=True) for size in (2, 1)]
    optimizer = torch.optim.SGD(weights, lr=0.5, momentum=MOMENTUM)
    scaler = torch.amp.GradScaler("cpu")
    path = []
    for batch, target in zip(inputs, targets, strict=True):
        loss = (batch @ weights[0] + weights[1] - target).square().mean()
        norm = update(weights, optimizer, scaler, loss, limit)
        path.append([torch.cat(weights).tolist(), norm])
    return path
