"""Train a small network in one process."""

import torch
from torch import nn

STEPS, GLOBAL_BATCH = 20, 48


def global_batch(step, size):
    """The samples of a step and their targets: a pure function of the step."""
    inputs = torch.randn(size, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    return inputs, inputs.sin().sum(dim=1, keepdim=True)


def train(steps, batch_size):
    """Train on one global batch per step; returns the network."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).double()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for step in range(steps):
        inputs, targets = global_batch(step, batch_size)
        loss = nn.functional.mse_loss(network(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step + 1}  loss {loss.item():.6f}", flush=True)
    return network


if __name__ == "__main__":
    train(STEPS, GLOBAL_BATCH)
