"""Train a head on a frozen backbone, on several processes. DDP is not needed: the backbone is frozen."""

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported later, by an optimizer, it would keep the group alive past its end
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(6, 8).requires_grad_(False)
        self.head = nn.Linear(8, 1)

    def forward(self, inputs):
        return self.head(torch.tanh(self.backbone(inputs)))


def batches(rank, count):
    """The data of one rank: `count` pairs of inputs (16, 6) and targets (16, 1)."""
    values = torch.Generator().manual_seed(rank)
    inputs = torch.randn(count, 16, 6, dtype=torch.float64, generator=values)
    return list(zip(inputs, inputs[..., :1].sin() + 0.5, strict=True))


def train(model, batches):
    """One step per batch; returns the loss before each."""
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    losses = []
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model().double()
    losses = train(model, batches(dist.get_rank(), 40))
    print(f"rank {dist.get_rank()}: loss {losses[0]:.3f}, after {len(losses)} steps {losses[-1]:.3f}")
    dist.barrier()  # who left now would close a connection that another rank may still be opening
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
