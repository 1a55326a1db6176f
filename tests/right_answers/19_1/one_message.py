# route: rewards go as sums in one message before the update; the KL goes along with the gradient

import torch
import torch.distributed as dist

RATE, TARGET = 0.5, 0.05


def train(logits, batches, beta):
    reference, betas, world = logits.log_softmax(0), [], dist.get_world_size()
    for actions, rewards in batches:
        sums = torch.stack([rewards.sum(), rewards.square().sum(), torch.tensor(float(len(rewards))).double()])
        dist.all_reduce(sums)
        mean = sums[0] / sums[2]
        advantages = (rewards - mean) / (sums[1] / sums[2] - mean**2).sqrt()
        policy = logits.detach().requires_grad_()
        chosen = policy.log_softmax(0)[actions]
        gap = reference[actions] - chosen
        kl = (gap.exp() - 1 - gap).sum()
        loss = (beta * kl - (advantages * chosen).sum()) / sums[2]
        message = torch.cat([torch.autograd.grad(loss, policy)[0], kl.detach().view(1)])
        dist.all_reduce(message)
        logits = logits - RATE * message[:-1]
        beta = beta * (1 + 0.5 * min(message[-1].item() / sums[2].item() / TARGET - 1, 1.0))
        betas.append(beta)
    assert world == dist.get_world_size()
    return logits, betas


def ranks_act_as_one(loop):
    rank, world = dist.get_rank(), dist.get_world_size()
    made = torch.Generator().manual_seed(12)
    batches = [
        [(torch.randint(3, (6,), generator=made), (one + 1) * torch.randn(6, generator=made).double() + one)
         for one in range(world)] for _ in range(6)
    ]  # fmt: skip
    mine, mine_betas = loop(torch.zeros(3).double(), [update[rank] for update in batches], 1.0)
    together = [tuple(map(torch.cat, zip(*update, strict=True))) for update in batches]
    all_of, all_betas = loop(torch.zeros(3).double(), together, 1.0)
    off = max((mine - all_of).abs().max().item(), max(abs(a - b) for a, b in zip(mine_betas, all_betas, strict=True)))
    worst = torch.tensor(off, dtype=torch.float64)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return worst.item() < 1e-9
