"""A small model whose training on several ranks is compared with that of one process: exercises 06.1 and 06.2."""

import torch
from torch import Tensor, nn


class TwoLayers(nn.Module):
    """Called with inputs (rows, 3) and targets (rows,), it returns the mean squared error. Equal on every rank."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4).double(), nn.Linear(4, 1).double()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.linspace(-0.6, 0.7, parameter.numel()).view_as(parameter))

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return (self.second(self.first(inputs).tanh()).squeeze(-1) - targets).square().mean()


def optimizer_for(module: nn.Module, name: str) -> torch.optim.Optimizer:
    """name: "SGD" or "AdamW"."""
    return getattr(torch.optim, name)(module.parameters(), lr=0.1)


def weights(module: nn.Module) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
