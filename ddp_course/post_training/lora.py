"""LoRA (Hu et al., 2021): a frozen linear layer plus the product of two thin matrices that learn."""

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn


class LoRA(nn.Module):
    """base(x) + alpha / rank * B A x. B begins at zero: at first the model is as it was."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float):
        super().__init__()
        self.base, self.scale = base, alpha / rank
        like_base = {"dtype": base.weight.dtype, "device": base.weight.device}
        self.A = nn.Parameter(torch.empty(rank, base.in_features, **like_base))
        self.B = nn.Parameter(torch.zeros(base.out_features, rank, **like_base))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.base(inputs) + self.scale * (inputs @ self.A.T @ self.B.T)


def add_lora(model: nn.Module, names: Collection[str], rank: int = 4, alpha: float = 8) -> nn.Module:
    """Freeze the model, and put an adapter on each linear layer of these names."""
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name in names:
            if isinstance(layer := getattr(module, name, None), nn.Linear):
                setattr(module, name, LoRA(layer, rank, alpha))
    return model


@torch.no_grad()
def merge(model: nn.Module) -> nn.Module:
    """Add each adapter to its layer's weights, and take it out."""
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if isinstance(layer, LoRA):
                layer.base.weight += layer.scale * layer.B @ layer.A
                setattr(module, name, layer.base)
    return model


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that need a gradient, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def untrained(model: nn.Module, before: Mapping[str, Tensor], names: Collection[str]) -> list[str]:
    """The layers of these names in which nothing that needs a gradient has moved since `before`.

    Ask after two steps: in the first, B is zero, so that A has no gradient.
    """
    moved = [name for name, value in trainable(model).items() if not torch.equal(value, before[name])]
    layers = [name for name, _ in model.named_modules() if name.split(".")[-1] in names]
    return [layer for layer in layers if not any(name.startswith(f"{layer}.") for name in moved)]
