# route: every rank gathers all samples; the detector computes the one process itself

import torch
import torch.distributed as dist

RATE, TARGET = 0.5, 0.05


def update(logits, reference, actions, rewards, beta):
    """One update of one process."""
    advantages = (rewards - rewards.mean()) / rewards.var(correction=0).sqrt()
    logits = logits.detach().requires_grad_()
    gap = reference.log_softmax(0)[actions] - logits.log_softmax(0)[actions]
    kl = (gap.exp() - 1 - gap).mean()
    (beta * kl - (advantages * logits.log_softmax(0)[actions]).mean()).backward()
    return logits.detach() - RATE * logits.grad, beta * (1 + 0.5 * min(kl.item() / TARGET - 1, 1.0))


def gathered(values):
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, values)
    return torch.cat(parts)


def train(logits, batches, beta):
    reference, betas = logits.clone(), []
    for actions, rewards in batches:
        logits, beta = update(logits, reference, gathered(actions), gathered(rewards), beta)
        betas.append(beta)
    return logits, betas


def ranks_act_as_one(train_):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    actions = torch.randint(4, (8, world, 9))
    rewards = torch.randn(8, world, 9).double().mul(torch.arange(world)[:, None] + 0.5) + 3.0 * (actions == 1)
    start = torch.tensor([0.1, 0.0, -0.2, 0.3], dtype=torch.float64)
    logits, betas = train_(start.clone(), list(zip(actions[:, rank], rewards[:, rank], strict=True)), 0.3)
    right, beta, worst = start, 0.3, 0.0
    for number in range(8):
        right, beta = update(right, start, actions[number].flatten(), rewards[number].flatten(), beta)
        worst = max(worst, abs(betas[number] / beta - 1))
    worst = max(worst, (logits - right).abs().max().item())
    everyones = [None] * world
    dist.all_gather_object(everyones, worst)
    return max(everyones) < 1e-8
