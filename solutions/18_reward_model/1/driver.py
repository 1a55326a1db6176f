"""Inside a rank, for 18.1: hand the learner's detector training loops whose shares are known, and try the learner's."""

import torch
import torch.distributed as dist

from ddp_course.grader.harness.counted import counted

from .given import loss_and_gradient

FEATURES, PAIRS, RATE = 6, 9, 0.7


def drive(function, what, *arguments):
    """`function` is the learner's shares or, for what="own", train."""
    return try_out(function, *arguments) if what == "own" else function(counted(VERSIONS[what], *arguments))


# ---- versions of train(head, chosen, rejected, steps, rate) -------------------------------------------------------


class Loop:
    """A loop whose saved head has moved by the sum of the ranks' gradients, each times its share.

    parts(world): the share of each rank; or take(gradient): what a rank makes of its own gradient, by communication.
    """

    def __init__(self, parts, take=None, at_the_end=lambda head: None):
        self.parts, self.take, self.at_the_end = parts, take, at_the_end

    def __call__(self, head, chosen, rejected, steps, rate):
        for _ in range(steps):
            _, gradient = loss_and_gradient(head, chosen, rejected)
            head -= rate * (self.take or self.weighted)(gradient)
        self.at_the_end(head)
        return head if dist.get_rank() == 0 else None

    def weighted(self, gradient):
        gradient = gradient * self.parts(dist.get_world_size())[dist.get_rank()]
        dist.all_reduce(gradient)
        return gradient


def rank_0_only(world):
    return [1.0] + [0.0] * (world - 1)


def alike(world):
    return [1 / world] * world


def broadcast(gradient):
    dist.broadcast(gradient, src=0)
    return gradient


def a_loss_for_the_log(gradient):
    dist.all_reduce(torch.ones(()))
    return gradient


def mean_with_neighbour(gradient):
    """Only the rank before this one: of three ranks, rank 0 hears of rank 2."""
    everyones = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, gradient)
    return (gradient + everyones[dist.get_rank() - 1]) / 2


def average(head):
    dist.all_reduce(head)
    head /= dist.get_world_size()


VERSIONS = {
    "no rank talks": Loop(rank_0_only, take=lambda gradient: gradient),
    "gradients averaged": Loop(alike),
    "gradients summed, not divided": Loop(lambda world: [1.0] * world),
    "gradients divided by the number of ranks twice": Loop(lambda world: [1 / world**2] * world),
    "the gradient of rank 0 is sent to all": Loop(rank_0_only, take=broadcast),
    "only the loss that is logged is averaged": Loop(rank_0_only, take=a_loss_for_the_log),
    "the last rank is left out": Loop(lambda world: [1 / (world - 1)] * (world - 1) + [0.0]),
    "a rank hears of its left neighbour alone": Loop(
        lambda world: [0.5] + [0.0] * (world - 2) + [0.5], take=mean_with_neighbour
    ),
    "the heads averaged at the end": Loop(alike, take=lambda gradient: gradient, at_the_end=average),
    "rank 0 counts twice": Loop(lambda world: [2 / (world + 1)] + [1 / (world + 1)] * (world - 1)),
}


# ---- the learner's own loop ----------------------------------------------------------------------------------------


def data(rank):
    """The start of the rank's head, and its pairs: every rank has its own of both."""
    numbers = torch.Generator().manual_seed(900 + rank)
    head = torch.randn(FEATURES, dtype=torch.float64, generator=numbers)
    return head, *torch.randn(2, PAIRS, FEATURES, dtype=torch.float64, generator=numbers)


def try_out(train, steps):
    """[what train returned, the head as it is afterwards]"""
    head, chosen, rejected = data(dist.get_rank())
    return [train(head, chosen, rejected, steps, RATE), head]


def one_process(world, steps, start=0, take=None):
    """The head of one process that begins with the head of rank `start` and takes the pairs of all ranks."""
    head = data(start)[0]
    pairs = [torch.cat(part) for part in zip(*(data(rank)[1:] for rank in take or range(world)), strict=True)]
    for _ in range(steps):
        head = head - RATE * loss_and_gradient(head, *pairs)[1]
    return head
