# mistake: adds up what it gathered, its own first: another order on every rank
# state: wrong
# check: replicas agree to the last bit
# message: by a rounding

import torch
import torch.distributed as dist

RATE, TARGET = 0.5, 0.05  # of the update; the KL that the controller of beta aims at, in nats


def loss_and_kl(logits, reference, actions, advantages, beta):
    """The mean loss of some samples, with a gradient, and their mean KL to the reference."""
    log_policy, log_reference = logits.log_softmax(0)[actions], reference.log_softmax(0)[actions]
    kl = (torch.exp(log_reference - log_policy) - 1 + log_policy - log_reference).mean()
    return beta * kl - (advantages * log_policy).mean(), kl.item()


def next_beta(beta, kl):
    """Half as large at a KL of 0, as it was at TARGET, at most half as large again."""
    return beta * (1 + 0.5 * min(kl / TARGET - 1, 1.0))


def ranks_act_as_one(train) -> bool:
    """Whether `train` gives what it gives to one process that has the samples of all ranks."""
    world, updates = dist.get_world_size(), 4
    numbers = torch.Generator().manual_seed(5)
    actions = torch.randint(3, (world, updates, 16), generator=numbers)
    rewards = torch.randn(world, updates, 16, dtype=torch.float64, generator=numbers)
    rewards = rewards * torch.arange(1, world + 1)[:, None, None] + (actions == 0)
    dealt = list(zip(actions[dist.get_rank()], rewards[dist.get_rank()], strict=True))
    # Ranks that all hold everything have nothing to tell each other: each is the one process.
    whole = list(zip(actions.transpose(0, 1).flatten(1), rewards.transpose(0, 1).flatten(1), strict=True))
    results = []
    for batches in (dealt, whole):
        logits, betas = train(torch.zeros(3, dtype=torch.float64), batches, 0.5)
        results.append(torch.cat([logits.detach(), torch.tensor(betas, dtype=torch.float64)]))
    same = torch.tensor(float(torch.allclose(*results, rtol=1e-9, atol=1e-12)))
    dist.all_reduce(same, dist.ReduceOp.MIN)
    return bool(same)


def mean_over_ranks(value):
    """The mean of a number over all ranks, which have as many samples each."""
    total = torch.as_tensor(value, dtype=torch.float64).clone()
    everyones = [torch.empty_like(total) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, total)
    rank = dist.get_rank()
    return (sum(everyones[rank:] + everyones[:rank]) / len(everyones)).item()


def train(logits, batches, beta):
    """One update a batch, of as many samples on every rank. Returns (the new logits, beta after each update)."""
    reference, betas = logits.detach(), []
    for actions, rewards in batches:
        distances = rewards - mean_over_ranks(rewards.mean())
        advantages = distances / mean_over_ranks(distances.square().mean()) ** 0.5
        logits = logits.detach().requires_grad_()
        loss, kl = loss_and_kl(logits, reference, actions, advantages, beta)
        [gradient] = torch.autograd.grad(loss, logits)
        dist.all_reduce(gradient)
        logits = logits.detach() - RATE * gradient / dist.get_world_size()
        beta = next_beta(beta, mean_over_ranks(kl))
        betas.append(beta)
    return logits, betas
