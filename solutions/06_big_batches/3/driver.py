"""Inside a rank, for 06.3: hand the learner's detector exact and inexact means, and try the learner's own."""

import gc
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ddp_course.data.windows import IGNORED
from ddp_course.grader.harness.counted import counted

TOKENS = 6  # in the vocabulary of the models here


def drive(function, what, *arguments):
    """`function` is the learner's is_token_mean or, for what="own", loss_and_gradients."""
    try:
        return try_out(function, *arguments) if what == "own" else function(counted(VERSIONS[what], *arguments))
    finally:
        gc.collect()  # a wrapper that outlives its group can abort the process


# ---- versions of loss_and_gradients(module, micro_batches) --------------------------------------------------------


class Mean:
    """Loss and gradients with a weight for the summed loss of each micro-batch, added up over the ranks.

    `weight(index, own, everyones)` gets the index of this micro-batch, the numbers of targets of all micro-batches of
    this rank, and those of every rank. loss, gradient, last_gradient: factors on what is returned, the third for the
    last parameter; elsewhere: a factor on the gradient of all ranks but rank 0.
    """

    def __init__(self, weight, loss=1.0, gradient=1.0, last_gradient=1.0, elsewhere=1.0, loss_weight=None):
        self.weight, self.loss, self.gradient = weight, loss, gradient
        self.last_gradient, self.elsewhere = last_gradient, elsewhere
        self.loss_weight = loss_weight or weight

    def __call__(self, module, micro_batches):
        own = [int((targets != IGNORED).sum()) for _, targets in micro_batches]
        everyones = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, own)
        total = torch.zeros((), dtype=torch.float64)
        for index, batch in enumerate(micro_batches):
            summed = loss_sum(module, *batch)
            (summed * self.weight(index, own, everyones)).backward()
            total += summed.detach() * self.loss_weight(index, own, everyones)
        gradients = [parameter.grad for parameter in module.parameters()]
        for tensor in [total, *gradients]:
            dist.all_reduce(tensor)
        gradients[-1] = gradients[-1] * self.last_gradient
        factor = self.gradient * (self.elsewhere if dist.get_rank() else 1.0)
        return total.item() * self.loss, [gradient * factor for gradient in gradients]


def loss_sum(module, inputs, targets):
    return F.cross_entropy(module(inputs).flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def exact(index, own, everyones):
    return 1 / sum(map(sum, everyones))


def mean_of_means(index, own, everyones):
    return 1 / (max(own[index], 1) * len(own) * len(everyones))


def tokens_of_the_micro_step(index, own, everyones):
    """Right over the ranks in each micro-step, and then the mean over the micro-steps. A rank may have fewer."""
    in_this_step = sum(counts[index] for counts in everyones if index < len(counts))
    return 1 / (max(in_this_step, 1) * max(map(len, everyones)))


def exact_in_other_order(module, micro_batches):
    """Everybody computes everything, in float64: no weights at all."""
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, micro_batches)
    return one_process(module, [batch for batches in reversed(everyones) for batch in batches])


VERSIONS = {
    "the mean over all tokens": Mean(exact),
    "the same, computed by every rank": exact_in_other_order,
    "the mean of the micro-batches' means": Mean(mean_of_means),
    "the mean of the ranks' means": Mean(lambda index, own, everyones: 1 / (max(sum(own), 1) * len(everyones))),
    "the mean of the micro-steps' means": Mean(tokens_of_the_micro_step),
    "0 / 0: NaN in the loss and in every gradient": Mean(exact, loss=math.nan, gradient=math.nan),
    "the right loss, the gradient of a mean of means": Mean(mean_of_means, loss_weight=exact),
    "the right gradient, the loss of a mean of means": Mean(exact, loss_weight=mean_of_means),
    "the gradient divided once more, except on rank 0": Mean(exact, elsewhere=0.5),
    "the last gradient one in a thousand too large": Mean(exact, last_gradient=1.001),
}


# ---- the learner's own ----------------------------------------------------------------------------------------------


class Model(nn.Module):
    """Logits from tokens: (lines, length) -> (lines, length, TOKENS). The same on every rank."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(TOKENS, 3).double(), nn.Linear(3, TOKENS).double()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.linspace(-0.9, 0.8, parameter.numel()).sin().view_as(parameter))

    def forward(self, tokens):
        return self.out(self.table(tokens).tanh())


def data(rank, lengths, width=7):
    """A micro-batch for each list in `lengths`, with a line of each length; an empty list: no lines at all."""
    numbers = torch.Generator().manual_seed(300 + rank)
    batches = []
    for lines in lengths:
        inputs, targets = torch.randint(TOKENS, (2, len(lines), width), generator=numbers)
        behind = torch.arange(width) >= torch.tensor(lines, dtype=torch.int64)[:, None]
        batches.append((inputs, targets.masked_fill(behind, IGNORED)))
    return batches


def try_out(function, lengths):
    """(loss, [gradients]) of the learner's function; `lengths`: of every rank."""
    rank = dist.get_rank()
    loss, gradients = function(Model(), data(rank, lengths[rank]))
    return [loss, list(gradients)]


def one_process(module, micro_batches):
    """The right result, from the micro-batches of all ranks in one process."""
    count = sum(int((targets != IGNORED).sum()) for _, targets in micro_batches)
    loss = sum(loss_sum(module, *batch) for batch in micro_batches) / count
    return loss.item(), list(torch.autograd.grad(loss, list(module.parameters())))
