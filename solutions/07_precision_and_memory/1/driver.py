"""Inside a rank, for 07.1: call the learner's train_step with momentum, and with a scale that grows, unlike train."""

import torch

LEARNING_RATE, MOMENTUM = 0.5, 0.9  # train in given.py has the same learning rate


def drive(train_step, inputs, targets, limit):
    """`train` as in given.py, with momentum, and a scale that doubles after two finite steps in a row. By step: [the
    three weights, the norm]."""
    weights = [torch.zeros(size, dtype=torch.float64, requires_grad=True) for size in (2, 1)]
    optimizer = torch.optim.SGD(weights, lr=LEARNING_RATE, momentum=MOMENTUM)
    scaler = torch.amp.GradScaler("cpu", growth_interval=2)
    path = []
    for batch, target in zip(inputs, targets, strict=True):
        loss = (batch @ weights[0] + weights[1] - target).square().mean()
        norm = train_step(weights, optimizer, scaler, loss, limit)
        path.append([torch.cat(weights).tolist(), norm])
    return path
