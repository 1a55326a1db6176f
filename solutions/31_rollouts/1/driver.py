"""Inside a rank, for 31.1: rounds of sampling in which some groups teach, and the number of rounds that a rank drew."""

import random

import torch.distributed as dist

PER_ROUND = 12  # groups that all ranks sample together


def teaching(seed, turn, shares, rank, world):
    """The numbers of a rank's groups of a round that teach; `shares` is the chance of a group, by rank."""
    numbers = range(turn * PER_ROUND + rank, (turn + 1) * PER_ROUND, world)
    return [number for number in numbers if random.Random(1000 * seed + number).random() < shares[rank]]


def drive(function, seed, wanted, shares):
    turns = []

    def draw(turn):
        turns.append(turn)
        return teaching(seed, turn, shares, dist.get_rank(), dist.get_world_size())

    numbers, count = function(draw, wanted)
    return {"numbers": list(numbers), "count": count, "turns": turns}
