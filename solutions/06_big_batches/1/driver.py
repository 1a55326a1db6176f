"""Inside a rank, for 06.1: hand the learner's detector right and wrong training loops, and try the learner's own."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_course.grader.harness.tensors import random_tensor
from ddp_course.grader.harness.two_layers import TwoLayers, optimizer_for, weights
from ddp_course.grader.harness.versions import driver_of

# ---- versions of train(module, optimizer, micro_batches, accumulate) ----------------------------------------------


def with_ddp(no_sync="both", flag="unset", synced=0, only_first_step=False):
    """A loop with DDP, in which only the micro-batches with number % accumulate == synced should communicate.

    no_sync  of the others, "both" passes, only the "forward" or "nothing" runs under no_sync; "all": both passes of
             every micro-batch
    flag     whether the flag that no_sync sets is set by hand, "before" or "after" the forward
    only_first_step  whether no micro-batch communicates after the first step
    """

    def train(module, optimizer, micro_batches, accumulate):
        model = DistributedDataParallel(module)
        for number, (inputs, targets) in enumerate(micro_batches, start=1):
            sync = number % accumulate == synced % accumulate and not (only_first_step and number > accumulate)
            skip = no_sync == "all" or not sync
            if flag == "before":
                model.require_backward_grad_sync = sync
            with context(model, skip and no_sync != "nothing"):
                loss = model(inputs, targets) / accumulate
            if flag == "after":
                model.require_backward_grad_sync = sync
            with context(model, skip and no_sync in ("both", "all")):
                loss.backward()
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()

    return train


def context(model, skip):
    return model.no_sync() if skip else contextlib.nullcontext()


def by_hand(change_at_end=None):
    """A loop without DDP that averages the gradients before each step.

    change_at_end  returns new weights of the model, from those after the last step; both as one vector
    """

    def train(module, optimizer, micro_batches, accumulate):
        for number, (inputs, targets) in enumerate(micro_batches, start=1):
            (module(inputs, targets) / accumulate).backward()
            if number % accumulate == 0:
                for parameter in module.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
                optimizer.step()
                optimizer.zero_grad()
        if change_at_end:
            nn.utils.vector_to_parameters(change_at_end(weights(module)), module.parameters())

    return train


def shift_on_last_rank(vector):
    vector[-1] += 1e-6 * (dist.get_rank() == dist.get_world_size() - 1)
    return vector


def exchange_on_rank_1(vector):
    """The sum does not change, and the first and the last rank stay equal."""
    if dist.get_rank() != 1:
        return vector
    if vector[0] == vector[-1]:
        return vector + 1  # to exchange equal numbers would change nothing
    return torch.cat([vector[-1:], vector[1:-1], vector[:1]])


VERSIONS = {
    "no_sync around both passes": with_ddp(),
    "the flag set before the forward": with_ddp("nothing", flag="before"),
    "only the forward under no_sync": with_ddp("forward"),
    "every micro-batch communicates": with_ddp("nothing"),
    "averages by hand before each step": by_hand(),
    "the flag set after the forward": with_ddp("nothing", flag="after"),
    "no micro-batch communicates": with_ddp("all"),
    "only the first micro-batch of a step communicates": with_ddp(synced=1),
    "only the first step communicates": with_ddp(only_first_step=True),
    "rank 1 ends with two numbers exchanged": by_hand(exchange_on_rank_1),
    "the last rank ends 1e-6 away, in one number": by_hand(shift_on_last_rank),
}


# ---- the learner's own loop ----------------------------------------------------------------------------------------


def data(rank, count):
    """`count` micro-batches of a rank: pairs (inputs, targets)."""
    return [(rows[:, :3], rows[:, 3]) for rows in random_tensor(50 + rank, count, 5, 4)]


def try_out(train, steps, accumulate, optimizer):
    """The weights after so many steps. `optimizer`: "SGD" or "AdamW"."""
    module = TwoLayers()
    train(module, optimizer_for(module, optimizer), data(dist.get_rank(), steps * accumulate), accumulate)
    return weights(module)


def one_process(world, steps, accumulate, optimizer):
    """The right result of try_out: one process that computes each global batch in one forward pass."""
    module = TwoLayers()
    optimizer = optimizer_for(module, optimizer)
    shares = [data(rank, steps * accumulate) for rank in range(world)]
    for first in range(0, steps * accumulate, accumulate):
        pairs = [pair for share in shares for pair in share[first : first + accumulate]]
        optimizer.zero_grad()
        module(*(torch.cat(part) for part in zip(*pairs, strict=True))).backward()
        optimizer.step()
    return weights(module)


drive = driver_of(VERSIONS, try_out)
