"""One rank trains on code, the other on prose; each kind has a branch of its own in the model."""

import torch
import torch.distributed as dist
from torch import nn

KINDS = ("code", "prose")


class TwoBranches(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(4, 4)
        self.code = nn.Linear(4, 1)
        self.prose = nn.Linear(4, 1)

    def forward(self, inputs, kind):
        return getattr(self, kind)(torch.tanh(self.shared(inputs)))


def batch(rank, step):
    """The samples of one rank: their kind, inputs (8, 4) and targets (8, 1). Code wants +1, prose -1."""
    kind = KINDS[(rank + step) % 2]
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * step + rank))
    return kind, inputs, torch.full((8, 1), 1.0 if kind == "code" else -1.0)


def synchronize_gradients(model):
    """After backward, on every rank: replace each gradient by the mean over the ranks."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = TwoBranches()
    for step in range(60):
        kind, inputs, targets = batch(rank, step)
        loss = nn.functional.mse_loss(model(inputs, kind), targets)
        model.zero_grad()
        loss.backward()
        synchronize_gradients(model)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad
    print(f"rank {rank}: the last loss is {loss.item():.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
