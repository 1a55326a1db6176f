"""AdamW as language models are trained with it."""

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
