"""AdamW as language models are trained with it, and optimizers that go on with settings of their own."""

import contextlib
from collections.abc import Iterator

import torch


def make_adamw(
    model: torch.nn.Module, learning_rate: float, weight_decay: float, fused: bool = True
) -> torch.optim.AdamW:
    """AdamW that decays matrices only: biases and norms, of one dimension, keep their size (GPT-3's betas).

    fused: one kernel updates all parameters; False takes torch's loop over them.
    """
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=fused)


@contextlib.contextmanager
def keep_settings(part: object) -> Iterator[None]:
    """Loading an optimizer's state also brings back its learning rate, its decay and the like: here, today's stay.

    Otherwise a flag that changed since the checkpoint would be written down and have no effect. Other parts of a run
    than optimizers have no settings.
    """
    settings = [{k: v for k, v in group.items() if k != "params"} for group in getattr(part, "param_groups", [])]
    yield
    for group, of_today in zip(getattr(part, "param_groups", []), settings, strict=True):
        group.update(of_today)
