"""Inside a rank, for 06.1: hand the learner's detector right and wrong training loops, and try the learner's own."""

import contextlib
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_course.grader.harness.counted import counted

RATE = 0.1


def drive(function, what, *arguments):
    """`function` is the learner's replicas_agree or, for what="own", train."""
    try:
        return try_out(function, *arguments) if what == "own" else function(counted(VERSIONS[what], *arguments))
    finally:
        gc.collect()  # a wrapper that outlives its group can abort the process


# ---- versions of train(module, optimizer, micro_batches, accumulate) ----------------------------------------------


def with_wrapper(when="both", last_is=0, learn=None):
    """A loop whose micro-batches are silent except those with number % accumulate == last_is.

    when: "both" passes under no_sync, "forward" or "backward" alone; "before" or "after" the forward: the flag is
    set there; "never" silent; "always" silent.
    """

    def train(module, optimizer, micro_batches, accumulate):
        model = DistributedDataParallel(module)
        for number, (inputs, targets) in enumerate(micro_batches, start=1):
            talk = number % accumulate == last_is % accumulate
            silent = when == "always" or (when != "never" and not talk)
            if when == "before":
                model.require_backward_grad_sync = talk
            with context(model, silent and when in ("both", "forward", "always")):
                loss = model(inputs, targets) / accumulate
            if when == "after":
                model.require_backward_grad_sync = talk
            with context(model, silent and when in ("both", "backward", "always")):
                loss.backward()
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()

    return train


def context(model, silent):
    return model.no_sync() if silent else contextlib.nullcontext()


def by_hand(last_touch=None):
    """A loop without wrapper that averages the gradients before each step. `last_touch` may change all numbers of
    the model in the end, as one vector; what it returns they become."""

    def train(module, optimizer, micro_batches, accumulate):
        for number, (inputs, targets) in enumerate(micro_batches, start=1):
            (module(inputs, targets) / accumulate).backward()
            if number % accumulate == 0:
                for parameter in module.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
                optimizer.step()
                optimizer.zero_grad()
        if last_touch:
            numbers = nn.utils.parameters_to_vector(module.parameters()).detach()
            nn.utils.vector_to_parameters(last_touch(numbers), module.parameters())

    return train


def last_rank_moves(numbers):
    numbers[-1] += 1e-6 * (dist.get_rank() == dist.get_world_size() - 1)
    return numbers


def rank_1_exchanges(numbers):
    """Neither the sum of the numbers nor the first and the last rank show it."""
    if dist.get_rank() == 1 and numbers[0] != numbers[-1]:
        return torch.cat([numbers[-1:], numbers[1:-1], numbers[:1]])
    return numbers + (dist.get_rank() == 1)  # nothing to exchange


VERSIONS = {
    "no_sync around both passes": with_wrapper(),
    "the flag set before the forward": with_wrapper("before"),
    "only the forward under no_sync": with_wrapper("forward"),
    "every micro-batch talks": with_wrapper("never"),
    "averages by hand before each step": by_hand(),
    "the flag set after the forward": with_wrapper("after"),
    "no rank ever talks": with_wrapper("always"),
    "talks in the first micro-batch of an update": with_wrapper(last_is=1),
    "rank 1 ends with two numbers exchanged": by_hand(rank_1_exchanges),
    "the last rank ends 1e-6 away, in one number": by_hand(last_rank_moves),
}


# ---- the learner's own loop ----------------------------------------------------------------------------------------


class Model(nn.Module):
    """Two layers; the loss is the mean squared error. The same on every rank."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4).double(), nn.Linear(4, 1).double()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.linspace(-0.6, 0.7, parameter.numel()).view_as(parameter))

    def forward(self, inputs, targets):
        return (self.second(self.first(inputs).tanh()).squeeze(-1) - targets).square().mean()


def data(rank, count):
    numbers = torch.randn(count, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(50 + rank))
    return [(rows[:, :3], rows[:, 3]) for rows in numbers]


def try_out(train, updates, accumulate, optimizer):
    """The weights after `updates` updates, as one flat tensor. `optimizer`: the name of one, "SGD" or "AdamW"."""
    module = Model()
    optimizer = getattr(torch.optim, optimizer)(module.parameters(), lr=RATE)
    train(module, optimizer, data(dist.get_rank(), updates * accumulate), accumulate)
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def one_process(world, updates, accumulate, optimizer):
    """The right result of try_out: one process that takes each global batch in one piece."""
    module = Model()
    optimizer = getattr(torch.optim, optimizer)(module.parameters(), lr=RATE)
    shares = [data(rank, updates * accumulate) for rank in range(world)]
    for first in range(0, updates * accumulate, accumulate):
        pairs = [pair for share in shares for pair in share[first : first + accumulate]]
        optimizer.zero_grad()
        module(*(torch.cat(part) for part in zip(*pairs, strict=True))).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
