"""An offline objective on pairs. It has been called GRPO; it has no groups, samples nothing and clips nothing.

An early version of scripts/kat_train_grpo.py in github.com/tablekat/nanochat-rlhf-density-sampling (October 2025)
trains its policy this way, with sums over an answer's tokens where these are means. Each pair (chosen, rejected) is one
example: the log-probability of the chosen answer is pushed up and that of the rejected one down, in proportion to their
reward margin, less beta times the margin of their log-probability ratios to the reference. It is REINFORCE with two
fixed samples that the policy did not draw. Kept here for a comparison with GRPO.
"""

import torch
from torch import Tensor

from ddp_course.post_training.grpo import mean_over_tokens


def pairwise_advantages(rewards: Tensor, log_probs: Tensor, reference: Tensor, beta: float) -> Tensor:
    """The weight of each answer: reward margin less beta times KL margin for the chosen one, minus that for the other.

    rewards, log_probs, reference: (pairs, 2), chosen first; of each answer its reward, and the mean log-probability of
    a token under the policy and under the reference. Returns (pairs, 2), without gradients.
    """
    log_ratios = (log_probs - reference).detach()
    margin = (rewards[:, 0] - rewards[:, 1]) - beta * (log_ratios[:, 0] - log_ratios[:, 1])
    return torch.stack([margin, -margin], dim=1)


def pairwise_loss(log_probs: Tensor, advantages: Tensor, counted: Tensor) -> Tensor:
    """Minus the weighted log-probability margin, *summed* over the pairs: divide once by the pairs of all ranks.

    log_probs, counted: (answers, length - 1). advantages: (answers,), as `pairwise_advantages` gives them.
    """
    return -(advantages * mean_over_tokens(log_probs, counted)).sum()
