"""A policy over a few actions learns from rewards; a penalty with an adaptive weight, beta, keeps it near its start."""

import torch
import torch.distributed as dist

ACTIONS, SAMPLES, STEPS = 6, 32, 20
RATE, TARGET = 0.5, 0.05  # learning rate; the KL that the controller of beta aims at, in nats


def batches_of(rank, steps):
    """The samples of this rank: (actions, rewards) for each step, (SAMPLES,) of int64 and of float64."""
    numbers = torch.Generator().manual_seed(rank)
    actions = torch.randint(ACTIONS, (steps, SAMPLES), generator=numbers)
    noise = torch.randn(steps, SAMPLES, dtype=torch.float64, generator=numbers)
    return list(zip(actions, (actions == rank) * (1.0 + 3.0 * rank) + 0.5 * noise, strict=True))


def loss_and_kl(logits, reference, actions, advantages, beta):
    """The mean loss of some samples, with a gradient, and their mean KL to the reference."""
    log_policy, log_reference = logits.log_softmax(0)[actions], reference.log_softmax(0)[actions]
    kl = (torch.exp(log_reference - log_policy) - 1 + log_policy - log_reference).mean()
    return beta * kl - (advantages * log_policy).mean(), kl.item()


def next_beta(beta, kl):
    """beta is halved at a KL of 0, stays the same at TARGET, and grows by half at most."""
    return beta * (1 + 0.5 * min(kl / TARGET - 1, 1.0))


def train(logits, batches, beta):
    """One step per batch; every rank has equally many samples. Returns (the new logits, beta after each step)."""
    reference, betas = logits.detach(), []
    for actions, rewards in batches:
        advantages = (rewards - rewards.mean()) / rewards.std(correction=0)
        logits = logits.detach().requires_grad_()
        loss, kl = loss_and_kl(logits, reference, actions, advantages, beta)
        [gradient] = torch.autograd.grad(loss, logits)
        dist.all_reduce(gradient)
        logits = logits.detach() - RATE * gradient / dist.get_world_size()
        beta = next_beta(beta, kl)
        betas.append(beta)
    return logits, betas


def main():
    dist.init_process_group("gloo")
    logits, betas = train(torch.zeros(ACTIONS, dtype=torch.float64), batches_of(dist.get_rank(), STEPS), beta=0.5)
    policy = ", ".join(f"{probability:.4f}" for probability in logits.softmax(0))
    print(f"policy {policy}; beta {betas[-1]:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
