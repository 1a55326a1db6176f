# mistake: pads the rounds so that each batch can be all-reduced
# state: wrong
# check: no message in the loop
# message: collectives, the last in line

import torch
import torch.distributed as dist


def weights(evaluate, samples, batch_size):
    def only(sample):
        return lambda indices: torch.tensor([float(index == sample) for index in indices], dtype=torch.float64)

    return [evaluate(only(sample), samples, batch_size) for sample in range(samples)]


def evaluate(loss_of, samples, batch_size):
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = list(range(rank, samples, world))
    rounds = -(-samples // (world * batch_size))
    total = torch.zeros(2, dtype=torch.float64)
    for k in range(rounds):
        batch = mine[k * batch_size : (k + 1) * batch_size]
        losses = loss_of(batch) if batch else torch.zeros(0, dtype=torch.float64)
        pair = torch.stack([losses.sum(), torch.tensor(float(len(batch)))])
        dist.all_reduce(pair)
        total += pair
    return (total[0] / total[1]).item()
