"""The formulas of GRPO: Shao et al., "DeepSeekMath" (2024), section 4.1. No model, no ranks, tensors only.

A sequence has `length` tokens, of which `length - 1` are predicted. `counted` marks the predictions that belong to the
completion; prompts and padding count nowhere.
"""

import torch
from torch import Tensor


def group_advantages(rewards: Tensor) -> Tensor:
    """How much better each completion is than the others of its group, in standard deviations of the group.

    rewards: (groups, completions of a group), at least 2; returns the same shape. A group whose rewards are all equal
    has nothing to teach: its advantages are exactly 0. The 1e-4 keeps a group that hardly differs from being blown up.
    """
    mean, spread = rewards.mean(dim=1, keepdim=True), rewards.std(dim=1, keepdim=True)
    equal = rewards.amax(dim=1, keepdim=True) == rewards.amin(dim=1, keepdim=True)
    return ((rewards - mean) / (spread + 1e-4)).masked_fill(equal, 0.0)


def token_log_probs(logits: Tensor, tokens: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability of each token after the first, and the entropy of the distribution it was drawn from, in nats.

    logits: (sequences, length, vocabulary), tokens: (sequences, length); both results are (sequences, length - 1).
    `temperature` is the one that was sampled with: the policy is what draws.
    """
    logits = logits[:, :-1]
    log_probs = (logits if logits.dtype == torch.float64 else logits.float()).div(temperature).log_softmax(-1)
    with torch.no_grad():
        entropy = -(log_probs.exp() * log_probs).sum(-1)
    return log_probs.gather(-1, tokens[:, 1:, None])[..., 0], entropy


def kl_estimate(log_probs: Tensor, reference: Tensor) -> Tensor:
    """KL of the policy to the reference for each sampled token, in nats: Schulman's third estimator (2020), k3.

    Unbiased if the tokens were drawn from the policy, and never negative.
    """
    gap = reference - log_probs
    return gap.exp() - gap - 1


def mean_over_tokens(values: Tensor, counted: Tensor) -> Tensor:
    """(sequences, length - 1) -> (sequences,): the mean over the counted tokens of each; 0 if it has none."""
    return values.where(counted, 0).sum(dim=1) / counted.sum(dim=1).clamp(min=1)


def grpo_loss(
    log_probs: Tensor, old: Tensor, reference: Tensor, advantages: Tensor, counted: Tensor, *, clip: float, beta: float
) -> tuple[Tensor, Tensor]:
    """Clipped policy gradient with a KL penalty. A *sum* over tokens: divide once by the tokens of all ranks.

    Also returns how many tokens have left the clip range, so that the policy term pulls at them no more.

    log_probs, old, reference: (sequences, length - 1), of the policy that learns, of the one that sampled, and of the
    frozen one. advantages: (sequences,). `clip`: how far the probability ratio may leave 1 before it stops paying.
    The paper takes the mean of each completion first; dividing by all tokens instead gives every token the same
    weight, however long its completion (Yu et al., "DAPO", 2025, section 3.3).
    """
    ratio = (log_probs - old).exp()
    advantages = advantages[:, None]
    free, bounded = ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages
    loss = beta * kl_estimate(log_probs, reference) - torch.minimum(free, bounded)
    return loss.where(counted, 0).sum(), ((bounded < free) & counted).sum()
