"""The formulas of GRPO, on tensors: Shao et al., "DeepSeekMath" (2024), section 4.1; and the KL penalty's controller.

A sequence has `length` tokens, of which `length - 1` are predicted. `counted` marks the predictions that belong to the
completion, not to the prompt or the padding.
"""

import math

import torch
from torch import Tensor

LOWEST_BETA, HIGHEST_BETA = 1e-6, 1e3  # below, the penalty is lost in rounding; above, it is all of the loss


def group_advantages(rewards: Tensor) -> Tensor:
    """How much better each completion is than the others of its group, in standard deviations of the group.

    rewards: (groups, completions of a group), at least 2; returns the same shape. A group whose rewards are all equal
    teaches nothing: its advantages are exactly 0. The 1e-4 bounds those of a group whose rewards hardly differ.
    """
    mean, spread = rewards.mean(dim=1, keepdim=True), rewards.std(dim=1, keepdim=True)
    equal = rewards.amax(dim=1, keepdim=True) == rewards.amin(dim=1, keepdim=True)
    return ((rewards - mean) / (spread + 1e-4)).masked_fill(equal, 0.0)


def token_log_probs(logits: Tensor, tokens: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability of each token after the first, and the entropy of the distribution it was drawn from, in nats.

    logits: (sequences, length, vocabulary), tokens: (sequences, length); both results are (sequences, length - 1).
    `temperature`: that of the sampling, so that these are the probabilities by which tokens were drawn.
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

    Also returns the number of clipped tokens, whose policy term has no gradient.

    log_probs, old, reference: (sequences, length - 1), of the policy that learns, of the one that sampled, and of the
    frozen one. advantages: (sequences,). `clip`: how far the probability ratio may leave 1.
    The paper takes the mean of each completion first; dividing by all tokens instead gives every token the same
    weight, however long its completion (Yu et al., "DAPO", 2025, section 3.3).
    """
    # Masked before the exponential, not after it: where a prompt's token is 90 nats away the exponential is infinite,
    # and in backward the mask's 0 times infinity is NaN, for all weights.
    log_probs, old, reference = (values.where(counted, 0) for values in (log_probs, old, reference))
    ratio = (log_probs - old).exp()
    advantages = advantages[:, None]
    unclipped, clipped = ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages
    loss = beta * kl_estimate(log_probs, reference) - torch.minimum(unclipped, clipped)
    return loss.where(counted, 0).sum(), ((clipped < unclipped) & counted).sum()


class AdaptiveBeta:
    """The KL penalty's weight. It grows while the policy is farther from the reference than `target`, else it shrinks.

    A proportional controller, as in Ziegler et al., "Fine-tuning language models from human preferences" (2019),
    section 2.2, whose gain is 0.1. `target` is in nats per token; 0 keeps the weight as it is.
    An adapted weight stays within LOWEST_BETA and HIGHEST_BETA, whatever the gain: a negative one would reward
    distance, and 0 could not grow again. A weight of 0 at the start stays 0.

    `value` depends on every KL that `update` got. So all ranks must pass the same one, the mean over the global batch,
    or they train on different losses; and a checkpoint has to hold `value`.
    """

    def __init__(self, value: float, target: float, gain: float) -> None:
        self.value = value
        self._target, self._gain = target, gain

    def update(self, kl: float) -> None:
        """`kl`: mean over the tokens of *all* ranks, in nats. NaN leaves the weight as it is."""
        if self._target and self.value and not math.isnan(kl):
            error = min(max(kl / self._target - 1, -0.2), 0.2)
            self.value = min(max(self.value * (1 + self._gain * error), LOWEST_BETA), HIGHEST_BETA)

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]
