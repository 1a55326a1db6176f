"""Inside a rank, for 18.3: call the learner's function with a reward head and this rank's share of a batch of pairs."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ddp_course.grader.harness.tensors import random_tensor

FEATURES = 12


class Head(nn.Module):
    """Rewards from features: (pairs, FEATURES) -> (pairs,). The same on every rank; counts the rows that it scores."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 16).double(), nn.Linear(16, 1).double()
        self.rows = 0
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.linspace(-0.9, 0.8, parameter.numel()).sin().view_as(parameter))

    def forward(self, features):
        self.rows += len(features)
        return self.second(self.first(features).tanh()).squeeze(-1)


def data(rank, prompts):
    """Features of a chosen and a rejected completion for each entry of `prompts`; int64 numbers of the prompts."""
    chosen, rejected = random_tensor(700 + rank, 2, len(prompts), FEATURES)
    return chosen, rejected, torch.tensor(prompts, dtype=torch.int64)


def drive(function, prompts):
    """(loss, gradients, rows scored) of the learner's function; `prompts`: by rank, the prompt of each pair."""
    rank, head = dist.get_rank(), Head()
    for parameter in head.parameters():
        parameter.grad = torch.ones_like(parameter)  # of an earlier step
    loss, gradients = function(head, *data(rank, prompts[rank]))
    return [loss, list(gradients), head.rows]


def global_batch(prompts):
    """The data of all ranks, concatenated."""
    return [torch.cat(part) for part in zip(*map(data, range(len(prompts)), prompts), strict=True)]


def one_process(prompts):
    """The right (loss, gradients): those of one process on the pairs of all ranks."""
    chosen, rejected, numbers = global_batch(prompts)
    return weighted(chosen, rejected, 1 / (numbers[:, None] == numbers).sum(1).double())


def weighted(chosen, rejected, weights):
    """(loss, gradients) of the mean with these weights."""
    head = Head()
    losses = F.softplus(head(rejected) - head(chosen))
    loss = (weights * losses).sum() / weights.sum()
    return loss.item(), list(torch.autograd.grad(loss, list(head.parameters())))


# ---- wrong means, by which a wrong answer is recognised -------------------------------------------------------------


def over_pairs(prompts):
    """Every pair counts once."""
    chosen, rejected, _ = global_batch(prompts)
    return weighted(chosen, rejected, torch.ones(len(chosen), dtype=torch.float64))


def by_rank(prompts, counted):
    """The mean over the ranks of each rank's weighted mean.

    counted: a pair's weight is 1 / the pairs of its prompt among "all" ranks' pairs, or among its rank's "own".
    """
    results = []
    for rank, own_prompts in enumerate(prompts):
        chosen, rejected, numbers = data(rank, own_prompts)
        counted_prompts = torch.tensor(sum(prompts, []) if counted == "all" else own_prompts, dtype=torch.int64)
        weights = 1 / (numbers[:, None] == counted_prompts).sum(1).double()
        results.append(weighted(chosen, rejected, weights) if own_prompts else (0.0, [0.0]))
    return sum(loss for loss, _ in results) / len(results), None


def counted_by_rank(prompts):
    """One divisor, but each rank counts its own pairs of a prompt."""
    chosen, rejected, _ = global_batch(prompts)
    numbers_by_rank = [data(rank, own_prompts)[2] for rank, own_prompts in enumerate(prompts)]
    weights = [1 / (numbers[:, None] == numbers).sum(1).double() for numbers in numbers_by_rank]
    return weighted(chosen, rejected, torch.cat(weights))


OTHER_MEANS = {  # functions that return (the loss, its gradients or None)
    "every pair counting the same": over_pairs,
    "each rank dividing by its own weights": lambda prompts: by_rank(prompts, "all"),
    "each rank counting its own pairs and dividing by its own weights": lambda prompts: by_rank(prompts, "own"),
    "each rank counting its own pairs of a prompt": counted_by_rank,
}
