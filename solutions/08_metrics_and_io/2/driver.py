"""Inside a rank, for 08.2: call the learner's `weights` on right and wrong evaluations, or the learner's `evaluate`."""

import runpy
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler


def drive(function, name, samples, batch_size, losses=None):
    """The weights that the learner's `weights` returns for EVALUATIONS[name].

    For name="own", `function` is the learner's `evaluate`: returns its result, and the batches of samples that it
    passed to loss_of.
    """
    if name != "own":
        return function(EVALUATIONS[name], samples, batch_size)
    asked = []

    def loss_of(indices):
        asked.append([int(index) for index in indices])
        return losses[asked[-1]]

    return {"returned": function(loss_of, samples, batch_size), "asked": asked}


def exact(loss_of, samples, batch_size):
    """Every sample once, whatever the number of ranks."""
    return _sum_by_count(loss_of, range(dist.get_rank(), samples, dist.get_world_size()), batch_size)


def padded(loss_of, samples, batch_size):
    """Sums and counts are right, but the sampler repeats samples until all ranks have equally many."""
    return _sum_by_count(loss_of, list(DistributedSampler(range(samples), shuffle=False)), batch_size)


def last_batch_dropped(loss_of, samples, batch_size):
    """Every rank leaves its short last batch out, and the sum is divided by all samples: the weights add up to less
    than 1."""
    own_samples = list(range(dist.get_rank(), samples, dist.get_world_size()))
    whole_batches = own_samples[: len(own_samples) // batch_size * batch_size]
    return _sum(loss_of, whole_batches, batch_size)[0].item() / samples


def only_rank_0(loss_of, samples, batch_size):
    """Every rank returns the mean over rank 0's samples."""
    mean = loss_of(list(range(0, samples, dist.get_world_size()))).mean()
    dist.broadcast(mean, src=0)
    return mean.item()


def _sum_by_count(loss_of, own_samples, batch_size):
    total = _sum(loss_of, own_samples, batch_size)
    return (total[0] / total[1]).item()


def _sum(loss_of, own_samples, batch_size):
    """The sum of the losses of all ranks' own samples, and their number."""
    total = torch.zeros(2, dtype=torch.float64)
    for first in range(0, len(own_samples), batch_size):
        losses = loss_of(list(own_samples[first : first + batch_size]))
        total += torch.stack([losses.sum(), torch.tensor(float(len(losses)))])
    dist.all_reduce(total)
    return total


EVALUATIONS = {
    "the broken evaluate": runpy.run_path(str(Path(__file__).with_name("given.py")))["evaluate"],
    "an exact one": exact,
    "one that pads": padded,
    "one that drops the last batch and divides by all samples": last_batch_dropped,
    "one that asks rank 0 alone": only_rank_0,
}
