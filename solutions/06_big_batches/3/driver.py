"""Inside a rank, for 06.3: hand the learner's detector exact and inexact means, and try the learner's own."""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ddp_course.data.windows import IGNORED
from ddp_course.grader.harness.versions import driver_of

VOCABULARY = 6
WIDTH = 7  # of the padded lines


# ---- versions of loss_and_gradients(module, micro_batches) --------------------------------------------------------


class Mean:
    """(loss, gradients): the summed losses of all micro-batches, each multiplied by a weight, added up over the ranks.

    weight, loss_weight  for the gradients, and for the loss (default: the same): functions of a micro-batch's index,
                         the numbers of targets in the micro-batches of this rank, and the lists of these of all ranks
    loss, gradient       factors of the results
    last_gradient        a factor of the gradient of the last parameter
    other_ranks          a factor of the gradients on all ranks but rank 0
    """

    def __init__(self, weight, loss_weight=None, loss=1.0, gradient=1.0, last_gradient=1.0, other_ranks=1.0):
        self.weight, self.loss_weight = weight, loss_weight or weight
        self.loss, self.gradient = loss, gradient
        self.last_gradient, self.other_ranks = last_gradient, other_ranks

    def __call__(self, module, micro_batches):
        counts = [int((targets != IGNORED).sum()) for _, targets in micro_batches]
        counts_by_rank = [None] * dist.get_world_size()
        dist.all_gather_object(counts_by_rank, counts)
        total = torch.zeros((), dtype=torch.float64)
        for index, batch in enumerate(micro_batches):
            loss = loss_sum(module, *batch)
            (loss * self.weight(index, counts, counts_by_rank)).backward()
            total += loss.detach() * self.loss_weight(index, counts, counts_by_rank)
        gradients = [parameter.grad for parameter in module.parameters()]
        for tensor in [total, *gradients]:
            dist.all_reduce(tensor)
        gradients[-1] = gradients[-1] * self.last_gradient
        factor = self.gradient * (self.other_ranks if dist.get_rank() else 1.0)
        return total.item() * self.loss, [gradient * factor for gradient in gradients]


def loss_sum(module, inputs, targets):
    return F.cross_entropy(module(inputs).flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def exact(index, counts, counts_by_rank):
    return 1 / sum(map(sum, counts_by_rank))


def mean_of_micro_batches(index, counts, counts_by_rank):
    return 1 / (max(counts[index], 1) * len(counts) * len(counts_by_rank))


def mean_of_ranks(index, counts, counts_by_rank):
    return 1 / (max(sum(counts), 1) * len(counts_by_rank))


def mean_of_micro_steps(index, counts, counts_by_rank):
    """A micro-step is one micro-batch of each rank that has so many."""
    targets = sum(counts[index] for counts in counts_by_rank if index < len(counts))
    return 1 / (max(targets, 1) * max(map(len, counts_by_rank)))


def exact_in_other_order(module, micro_batches):
    """Every rank computes the mean over the micro-batches of all ranks itself, from the last rank to the first."""
    by_rank = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, micro_batches)
    return one_process(module, [batch for batches in reversed(by_rank) for batch in batches])


VERSIONS = {
    "the mean over all tokens": Mean(exact),
    "the same, computed by every rank": exact_in_other_order,
    "the mean of the micro-batches' means": Mean(mean_of_micro_batches),
    "the mean of the ranks' means": Mean(mean_of_ranks),
    "the mean of the micro-steps' means": Mean(mean_of_micro_steps),
    "0 / 0: NaN in the loss and in every gradient": Mean(exact, loss=math.nan, gradient=math.nan),
    "the right loss, the gradient of a mean of means": Mean(mean_of_micro_batches, loss_weight=exact),
    "the right gradient, the loss of a mean of means": Mean(exact, loss_weight=mean_of_micro_batches),
    "the gradient divided once more, except on rank 0": Mean(exact, other_ranks=0.5),
    "the last gradient one in a thousand too large": Mean(exact, last_gradient=1.001),
}


# ---- the learner's own loss and gradients --------------------------------------------------------------------------


class Model(nn.Module):
    """Logits from tokens: (lines, length) -> (lines, length, VOCABULARY). The same on every rank."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(VOCABULARY, 3).double(), nn.Linear(3, VOCABULARY).double()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.linspace(-0.9, 0.8, parameter.numel()).sin().view_as(parameter))

    def forward(self, tokens):
        return self.out(self.table(tokens).tanh())


def data(rank, lengths):
    """The micro-batches of a rank: for each list in `lengths` one with a line of each length in it, perhaps none."""
    generator = torch.Generator().manual_seed(300 + rank)
    batches = []
    for line_lengths in lengths:
        inputs, targets = torch.randint(VOCABULARY, (2, len(line_lengths), WIDTH), generator=generator)
        padding = torch.arange(WIDTH) >= torch.tensor(line_lengths, dtype=torch.int64)[:, None]
        batches.append((inputs, targets.masked_fill(padding, IGNORED)))
    return batches


def try_out(function, lengths):
    """[loss, gradients] of the learner's function; `lengths`: by rank, those that `data` takes."""
    rank = dist.get_rank()
    loss, gradients = function(Model(), data(rank, lengths[rank]))
    return [loss, list(gradients)]


def one_process(module, micro_batches):
    """The right (loss, gradients), from the micro-batches of all ranks in one process."""
    count = sum(int((targets != IGNORED).sum()) for _, targets in micro_batches)
    loss = sum(loss_sum(module, *batch) for batch in micro_batches) / count
    return loss.item(), list(torch.autograd.grad(loss, list(module.parameters())))


drive = driver_of(VERSIONS, try_out)
