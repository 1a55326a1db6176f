"""Inside a rank, for 19.1: run the learner's detector on loops with global or local numbers, and the learner's loop.

A number of a loop is global if it is made of the samples of all ranks.
"""

import torch
import torch.distributed as dist

from ddp_course.grader.harness.versions import driver_of

from .given import RATE, loss_and_kl, next_beta

ACTIONS, SAMPLES, BETA = 5, 11, 0.4


# ---- versions of train(logits, batches, beta) ---------------------------------------------------------------------


def unchanged(value):
    return value


def mean_over_ranks(value):
    total = torch.as_tensor(value, dtype=torch.float64).clone()
    dist.all_reduce(total)
    total /= dist.get_world_size()
    return total if total.dim() else total.item()


def broadcast_number(value):
    box = torch.tensor(value, dtype=torch.float64)
    dist.broadcast(box, src=0)
    return box.item()


def all_gathered(samples):
    """The samples of all ranks, the last rank's first."""
    parts = [torch.empty_like(samples) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, samples)
    return torch.cat(parts[::-1])


def local_moments(rewards):
    return rewards.mean(), rewards.std(correction=0)


def global_moments(rewards):
    mean = mean_over_ranks(rewards.mean())
    return mean, mean_over_ranks((rewards - mean).square().mean()) ** 0.5


def moments_from_rank_0(rewards):
    mean, spread = local_moments(all_gathered(rewards))
    return broadcast_number(mean.item()), broadcast_number(spread.item())


def with_own_kl(beta, kl):
    """Another beta on the last rank alone: the other ranks return what one process returns."""
    return beta + 1e-3 * kl * (dist.get_rank() == dist.get_world_size() - 1)


def make_train(
    moments=global_moments,
    reduce_kl=mean_over_ranks,
    reduce=mean_over_ranks,
    reduce_last=None,
    logged=lambda beta, kl: float(beta),
    gather=unchanged,
):
    """A function `train`; the default is right. Each argument takes what this rank has and returns what `train` uses:

    moments(rewards)      (mean, spread) of the rewards
    reduce_kl(kl)         the KL that beta is adapted to
    reduce(gradient)      the gradient of a step
    reduce_last(gradient) the gradient of the last step; default: as `reduce`
    logged(beta, kl)      the beta that is returned for a step
    gather(samples)       the actions, and the rewards, that the loss is computed from
    """

    def train(logits, batches, beta):
        reference, betas = logits.detach(), []
        reduces = [reduce] * (len(batches) - 1) + [reduce_last or reduce]
        for (actions, rewards), reduce_gradient in zip(batches, reduces, strict=True):
            actions, rewards = gather(actions), gather(rewards)
            mean, spread = moments(rewards)
            logits = logits.detach().requires_grad_()
            loss, kl = loss_and_kl(logits, reference, actions, (rewards - mean) / spread, beta)
            [gradient] = torch.autograd.grad(loss, logits)
            logits = logits.detach() - RATE * reduce_gradient(gradient)
            beta = next_beta(beta, reduce_kl(kl))
            betas.append(logged(beta, kl))
        return logits, betas

    return train


VERSIONS = {  # the first three are right
    "everything is global": make_train(),
    "every rank gathers all samples": make_train(local_moments, unchanged, unchanged, gather=all_gathered),
    "rank 0 computes the global numbers and broadcasts them": make_train(
        moments_from_rank_0, lambda kl: broadcast_number(mean_over_ranks(kl))
    ),
    "own mean and spread, own KL": make_train(local_moments, reduce_kl=unchanged),
    "own KL": make_train(reduce_kl=unchanged),
    "own mean and spread of the rewards": make_train(local_moments),
    "the mean of the ranks' spreads": make_train(lambda rewards: tuple(map(mean_over_ranks, local_moments(rewards)))),
    "the KL of rank 0 for all": make_train(reduce_kl=broadcast_number),
    "own KL, and the mean of the ranks' betas in the log": make_train(
        reduce_kl=unchanged, logged=lambda beta, kl: mean_over_ranks(beta)
    ),
    "all but a thousandth of the KL is global": make_train(
        reduce_kl=lambda kl: mean_over_ranks(kl) + 1e-3 * (kl - mean_over_ranks(kl))
    ),
    "global numbers, but no gradient is averaged": make_train(reduce=unchanged),
    "global numbers, but the gradient of the last step is not averaged": make_train(reduce_last=unchanged),
    "global numbers, but a rank writes down a beta with its own KL": make_train(logged=with_own_kl),
}


# ---- the learner's own loop ----------------------------------------------------------------------------------------


def data(rank, steps):
    """A rank's (actions, rewards) for each step. Every second action is the rank's number, so some KLs are large."""
    generator = torch.Generator().manual_seed(400 + rank)
    actions = torch.randint(ACTIONS, (steps, SAMPLES), generator=generator)
    actions[:, ::2] = rank
    noise = torch.randn(steps, SAMPLES, dtype=torch.float64, generator=generator)
    return list(zip(actions, (actions == 1) * 4.0 + (0.5 + 0.5 * rank) * noise - 0.5 * rank, strict=True))


def initial_logits():
    return torch.linspace(-0.3, 0.4, ACTIONS, dtype=torch.float64).sin()


def try_out(train, steps):
    """[logits, betas] of the learner's loop"""
    logits, betas = train(initial_logits(), data(dist.get_rank(), steps), BETA)
    return [logits, list(betas)]


def one_process(world, steps):
    """The right result: one process with the samples of all ranks."""
    global_batches = [
        tuple(torch.cat(part) for part in zip(*batches, strict=True))
        for batches in zip(*(data(rank, steps) for rank in range(world)), strict=True)
    ]
    return make_train(local_moments, unchanged, unchanged)(initial_logits(), global_batches, BETA)


drive = driver_of(VERSIONS, try_out)
