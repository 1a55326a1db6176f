# mistake: a rank without completions returns before the all-reduce
# state: wrong
# check: does not end
# message: rank 1 had returned, rank 2 was in all_reduce

import torch
import torch.distributed as dist

CLIP = 0.2  # the ratio counts from 1 - CLIP to 1 + CLIP


def group_advantages(rewards, prompts):
    """(n,): how much better each completion is than the others of its prompt, in standard deviations of the group."""
    advantages = torch.zeros_like(rewards)
    for prompt in prompts.unique():
        group = rewards[prompts == prompt]
        if group.min() < group.max():  # else exactly 0
            advantages[prompts == prompt] = (group - group.mean()) / (group.std() + 1e-4)
    return advantages


def joint_loss_and_gradients(policy, tokens, mask, old, rewards, prompts):
    """(the loss, [its gradient for each parameter of `policy`]) of all ranks' completions, the same on every rank.

    policy: tokens -> the log-probability of each, (n, length) -> (n, length). This rank's n completions, n may be 0:
    tokens, mask (True where a token is the completion's), old (log-probabilities when it was sampled): (n, length);
    rewards, prompts (which group a completion belongs to): (n,).
    """
    if not len(tokens):
        return 0.0, [torch.zeros_like(one) for one in policy.parameters()]
    ratio = torch.exp(torch.where(mask, policy(tokens) - old, 0.0))
    advantages = group_advantages(rewards, prompts)[:, None]
    terms = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    loss = -torch.where(mask, terms, 0.0).sum()
    gradients = torch.autograd.grad(loss, list(policy.parameters()))

    numbers = torch.stack([mask.sum().double(), loss.detach()])
    message = torch.cat([numbers, *(one.flatten() for one in gradients)])
    dist.all_reduce(message)
    message = message[1:] / message[0]  # one divisor: the tokens of all ranks
    pieces = message[1:].split([one.numel() for one in gradients])
    return message[0].item(), [piece.view_as(one) for piece, one in zip(pieces, gradients, strict=True)]
