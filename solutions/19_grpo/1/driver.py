"""Inside a rank, for 19.1: hand the learner's detector loops with joint and with local numbers, and try the learner's.

A number of a loop is joint if it is made of the samples of all ranks.
"""

import torch
import torch.distributed as dist

from .given import RATE, loss_and_kl, next_beta

ACTIONS, SAMPLES, BETA = 5, 11, 0.4


def drive(function, what, *arguments):
    """`function` is the learner's ranks_act_as_one or, for what="own", train."""
    return try_out(function, *arguments) if what == "own" else function(VERSIONS[what])


# ---- versions of train(logits, batches, beta) ---------------------------------------------------------------------


class Loop:
    """A loop that takes mean and spread of the rewards, the KL and beta from somewhere.

    moments(rewards) -> (mean, spread), joint_kl(kl), average(gradient), logged(beta, kl): each is handed what this rank
    has and returns what is used. gather: the same for the samples themselves. last: average in the last update.
    """

    def __init__(self, moments, joint_kl, average=None, logged=lambda beta, kl: float(beta), gather=None, last=None):
        self.moments, self.joint_kl, self.average = moments, joint_kl, average or mean
        self.logged, self.gather, self.last = logged, gather, last or self.average

    def __call__(self, logits, batches, beta):
        reference, betas = logits.detach(), []
        for left, (actions, rewards) in zip(reversed(range(len(batches))), batches, strict=True):
            if self.gather:
                actions, rewards = self.gather(actions), self.gather(rewards)
            center, spread = self.moments(rewards)
            logits = logits.detach().requires_grad_()
            loss, kl = loss_and_kl(logits, reference, actions, (rewards - center) / spread, beta)
            [gradient] = torch.autograd.grad(loss, logits)
            logits = logits.detach() - RATE * (self.average if left else self.last)(gradient)
            beta = next_beta(beta, self.joint_kl(kl))
            betas.append(self.logged(beta, kl))
        return logits, betas


def mean(value):
    total = torch.as_tensor(value, dtype=torch.float64).clone()
    dist.all_reduce(total)
    total /= dist.get_world_size()
    return total if total.dim() else total.item()


def of_rank_0(value):
    box = torch.tensor(value, dtype=torch.float64)
    dist.broadcast(box, src=0)
    return box.item()


def everyones(values):
    """The samples of all ranks, the last rank's first."""
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, values)
    return torch.cat(parts[::-1])


def own(rewards):
    return rewards.mean(), rewards.std(correction=0)


def of_all(rewards):
    center = mean(rewards.mean())
    return center, mean((rewards - center).square().mean()) ** 0.5


def moments_of_rank_0(rewards):
    center, spread = own(everyones(rewards))
    return of_rank_0(center.item()), of_rank_0(spread.item())


def with_own_kl(beta, kl):
    """On the last rank alone: the others cannot see it in what they hold."""
    return beta + 1e-3 * kl * (dist.get_rank() == dist.get_world_size() - 1)


def same(value):
    return value


VERSIONS = {
    "everything is joint": Loop(of_all, mean),
    "everybody gathers all samples": Loop(own, same, average=same, gather=everyones),
    "rank 0 computes the joint numbers and tells them": Loop(moments_of_rank_0, lambda kl: of_rank_0(mean(kl))),
    "own mean and spread, own KL": Loop(own, same),
    "own KL": Loop(of_all, same),
    "own mean and spread of the rewards": Loop(own, mean),
    "the mean of the ranks' spreads": Loop(lambda rewards: tuple(map(mean, own(rewards))), mean),
    "the KL of rank 0 for all": Loop(of_all, of_rank_0),
    "own KL, and the mean of the ranks' betas in the log": Loop(of_all, same, logged=lambda beta, kl: mean(beta)),
    "all but a thousandth of the KL is joint": Loop(of_all, lambda kl: mean(kl) + 1e-3 * (kl - mean(kl))),
    "joint numbers, but no gradient is averaged": Loop(of_all, mean, average=same),
    "joint numbers, but the gradient of the last update is not averaged": Loop(of_all, mean, last=same),
    "joint numbers, but a rank writes down a beta with its own KL": Loop(of_all, mean, logged=with_own_kl),
}


# ---- the learner's own loop ----------------------------------------------------------------------------------------


def data(rank, updates):
    """Half of a rank's samples have one action, another one on each rank: so the KL of some ranks is large."""
    numbers = torch.Generator().manual_seed(400 + rank)
    actions = torch.randint(ACTIONS, (updates, SAMPLES), generator=numbers)
    actions[:, ::2] = rank
    noise = torch.randn(updates, SAMPLES, dtype=torch.float64, generator=numbers)
    return list(zip(actions, (actions == 1) * 4.0 + (0.5 + 0.5 * rank) * noise - 0.5 * rank, strict=True))


def start():
    return torch.linspace(-0.3, 0.4, ACTIONS, dtype=torch.float64).sin()


def try_out(train, updates):
    """[logits, betas] of the learner's loop"""
    logits, betas = train(start(), data(dist.get_rank(), updates), BETA)
    return [logits, list(betas)]


def one_process(world, updates):
    """The right result: one process with the samples of all ranks."""
    joint = [
        tuple(torch.cat(part) for part in zip(*batches, strict=True))
        for batches in zip(*(data(rank, updates) for rank in range(world)), strict=True)
    ]
    return Loop(own, same, average=same)(start(), joint, BETA)
