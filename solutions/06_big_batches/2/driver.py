"""Inside a rank, for 06.2: hand the learner's detector loops with and without leftovers, and try the learner's own."""

import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_course.grader.harness.two_layers import TwoLayers, optimizer_for, weights
from ddp_course.grader.harness.versions import driver_of

# ---- versions of train(module, optimizer, epochs, accumulate) -----------------------------------------------------


class Loop:
    """A loop over epochs.

    rest           the micro-batches that fill no step are "lost", "kept" for the first step of the next epoch, a
                   "short" step of their own, or part of a "long" last one
    divisor        of a micro-batch's loss: "full", `accumulate`; "actual", the number of micro-batches of the step;
                   or "none"
    zero_at_start  zero_grad comes before a step's first backward, not after optimizer.step()
    set_to_none    zero_grad drops the gradients; otherwise it fills them with zeros, in place
    """

    def __init__(self, rest, divisor="full", zero_at_start=False, set_to_none=True):
        self.rest, self.divisor, self.zero_at_start, self.set_to_none = rest, divisor, zero_at_start, set_to_none

    def __call__(self, module, optimizer, epochs, accumulate):
        model = DistributedDataParallel(module)
        for batches in self.steps(epochs, accumulate):
            if self.zero_at_start:
                optimizer.zero_grad(self.set_to_none)
            for number, inputs in enumerate(batches, start=1):
                with model.no_sync() if number < len(batches) else contextlib.nullcontext():
                    (model(inputs) / self.divisor_of(batches, accumulate)).backward()
            optimizer.step()
            if not self.zero_at_start:
                optimizer.zero_grad(self.set_to_none)

    def steps(self, epochs, accumulate):
        """Yield the list of micro-batches of each step."""
        carried = []
        for micro_batches in epochs:
            full = len(micro_batches) // accumulate * accumulate
            groups = [micro_batches[first : first + accumulate] for first in range(0, full, accumulate)]
            left = micro_batches[full:]
            if self.rest == "kept":
                groups[:1] = [carried + groups[0]] if groups else []
                carried = left if groups else carried + left
            elif self.rest == "long" and groups:
                groups[-1] = groups[-1] + left
            elif self.rest != "lost" and left:
                groups.append(left)
            yield from groups

    def divisor_of(self, batches, accumulate):
        return {"full": accumulate, "actual": len(batches), "none": 1}[self.divisor]

    def sizes(self, epochs, micro_batches, accumulate):
        """The size of each step of this loop: its number of micro-batches, divided by the divisor of their losses."""
        steps = self.steps([[0] * micro_batches] * epochs, accumulate)
        return [len(batches) / self.divisor_of(batches, accumulate) for batches in steps]


VERSIONS = {
    "throws the rest of an epoch away": Loop("lost"),
    "adds the rest to the next epoch": Loop("kept"),
    "a short last step, divided by its own length": Loop("short", "actual"),
    "the same, with zero_grad before the first backward": Loop("short", "actual", zero_at_start=True),
    "a short last step, divided as if it were full": Loop("short"),
    "a long last step, divided as if it were not": Loop("long"),
    "no division at all": Loop("short", "none", set_to_none=False),
}


# ---- the learner's own loop ----------------------------------------------------------------------------------------


class Model(TwoLayers):
    """The same for a micro-batch (rows, 4) whose last column is the target."""

    def forward(self, rows):
        return super().forward(rows[:, :3], rows[:, 3])


def data(rank, counts):
    """The epochs of a rank: for each of `counts` a list of so many micro-batches."""
    generator = torch.Generator().manual_seed(70 + rank)
    return [list(torch.randn(count, 5, 4, dtype=torch.float64, generator=generator)) for count in counts]


def try_out(train, counts, accumulate, optimizer):
    """The weights after epochs of `counts` micro-batches. `optimizer`: "SGD" or "AdamW"."""
    module = Model()
    train(module, optimizer_for(module, optimizer), data(dist.get_rank(), counts), accumulate)
    return weights(module)


def one_process(world, counts, accumulate, optimizer, loop=None):
    """The right result of try_out: one process that has the micro-batches of all ranks, in the steps of `loop`."""
    loop, module = loop or Loop("short", "actual"), Model()
    optimizer = optimizer_for(module, optimizer)
    epochs = [
        [torch.cat(batches) for batches in zip(*epoch, strict=True)]
        for epoch in zip(*(data(rank, counts) for rank in range(world)), strict=True)
    ]
    for batches in loop.steps(epochs, accumulate):
        optimizer.zero_grad()
        (sum(module(batch) for batch in batches) / loop.divisor_of(batches, accumulate)).backward()
        optimizer.step()
    return weights(module)


drive = driver_of(VERSIONS, try_out)
