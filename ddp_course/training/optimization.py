"""AdamW as language models are trained with it, and the schedule of its learning rate.

A learning rate is a function of the step alone, so every rank and every resume agree on it.
"""

import math

import torch


def make_adamw(
    model: torch.nn.Module, learning_rate: float, weight_decay: float, fused: bool = True
) -> torch.optim.AdamW:
    """AdamW with GPT-3's betas that decays matrices only, not biases and norms, which have one dimension.

    fused: one kernel updates all parameters; False takes torch's loop over them.
    """
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=fused)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of all parameters, from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def warmup_cosine(step: int, steps: int, warmup_steps: int, peak: float, final: float) -> float:
    """The learning rate of step `step` (counted from 0) of `steps`: up in a line to `peak`, down a cosine to `final`.

    Loshchilov and Hutter, "SGDR" (2017), without restarts; the warm-up as in Goyal et al. (2017).
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    done = (step - warmup_steps) / max(1, steps - warmup_steps)
    return final + 0.5 * (1 + math.cos(math.pi * done)) * (peak - final)
