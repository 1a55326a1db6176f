"""Inside a rank, for 18.1: run the learner's detector on loops with known shares, and the learner's own loop."""

import torch
import torch.distributed as dist

from ddp_course.grader.harness.versions import driver_of

from .given import loss_and_gradient

FEATURES, PAIRS, RATE = 6, 9, 0.7


# ---- versions of train(head, chosen, rejected, steps, rate) -------------------------------------------------------


class Loop:
    """A loop that moves the saved head by the sum of the ranks' gradients, each times its share.

    shares(world)     the share of each rank
    reduce(gradient)  the gradient of a rank's step; default: the sum of the ranks' gradients, each times its share
    finish(head)      the head that is saved; default: the one that was trained
    """

    def __init__(self, shares, reduce=None, finish=lambda head: head):
        self.shares, self.reduce, self.finish = shares, reduce or self.weighted_sum, finish

    def __call__(self, head, chosen, rejected, steps, rate):
        for _ in range(steps):
            _, gradient = loss_and_gradient(head, chosen, rejected)
            head -= rate * self.reduce(gradient)
        saved = self.finish(head)
        return saved if dist.get_rank() == 0 else None

    def weighted_sum(self, gradient):
        gradient = gradient * self.shares(dist.get_world_size())[dist.get_rank()]
        dist.all_reduce(gradient)
        return gradient


def rank_0_only(world):
    return [1.0] + [0.0] * (world - 1)


def equal_shares(world):
    return [1 / world] * world


def unreduced(gradient):
    return gradient


def broadcast(gradient):
    dist.broadcast(gradient, src=0)
    return gradient


def reduce_only_a_loss(gradient):
    dist.all_reduce(torch.ones(()))
    return gradient


def mean_with_neighbour(gradient):
    """The mean with the gradient of the rank before this one. For rank 0 that is the last rank."""
    gradients = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
    dist.all_gather(gradients, gradient)
    return (gradient + gradients[dist.get_rank() - 1]) / 2


def average(head):
    saved = head / dist.get_world_size()
    dist.all_reduce(saved)
    return saved


VERSIONS = {
    "no rank communicates": Loop(rank_0_only, unreduced),
    "gradients averaged": Loop(equal_shares),
    "gradients summed, not divided": Loop(lambda world: [1.0] * world),
    "gradients divided by the number of ranks twice": Loop(lambda world: [1 / world**2] * world),
    "the gradient of rank 0 is sent to all": Loop(rank_0_only, broadcast),
    "only the loss that is logged is averaged": Loop(rank_0_only, reduce_only_a_loss),
    "the last rank is left out": Loop(lambda world: [1 / (world - 1)] * (world - 1) + [0.0]),
    "a rank averages with its left neighbour alone": Loop(
        lambda world: [0.5] + [0.0] * (world - 2) + [0.5], mean_with_neighbour
    ),
    "the heads averaged at the end": Loop(equal_shares, unreduced, finish=average),
    "rank 0 counts twice": Loop(lambda world: [2 / (world + 1)] + [1 / (world + 1)] * (world - 1)),
}


# ---- the learner's own loop ----------------------------------------------------------------------------------------


def data(rank):
    """(head, chosen, rejected) of a rank at the start; they differ between the ranks."""
    generator = torch.Generator().manual_seed(900 + rank)
    head = torch.randn(FEATURES, dtype=torch.float64, generator=generator)
    return head, *torch.randn(2, PAIRS, FEATURES, dtype=torch.float64, generator=generator)


def try_out(train, steps):
    """[what train returned, the head after it]"""
    head, chosen, rejected = data(dist.get_rank())
    return [train(head, chosen, rejected, steps, RATE), head]


def one_process(world, steps, start=0, ranks=None):
    """The head of one process that starts from the head of rank `start`, on the pairs of `ranks`; default: all."""
    head = data(start)[0]
    pairs = [torch.cat(part) for part in zip(*(data(rank)[1:] for rank in ranks or range(world)), strict=True)]
    for _ in range(steps):
        head = head - RATE * loss_and_gradient(head, *pairs)[1]
    return head


drive = driver_of(VERSIONS, try_out)
