"""Inside a rank, for 31.1: rounds of sampling in which some groups teach, and the number of rounds that a rank drew."""

import random

import torch.distributed as dist

from .given import PER_ROUND


def teaching_groups(start, turn, chances, rank, world):
    """The numbers of a rank's groups of round `turn` that teach, the largest first.

    start: the smallest number of round 0. chances: that a group teaches, for each rank.
    """
    numbers = range(start + turn * PER_ROUND + rank, start + (turn + 1) * PER_ROUND, world)
    return [number for number in reversed(numbers) if random.Random(number + 1).random() < chances[rank]]


def drive(fill, start, wanted, chances):
    """The numbers and the divisor that the learner's fill returns, and the rounds for which it calls `draw`."""
    turns = []

    def draw(turn):
        turns.append(turn)
        return teaching_groups(start, turn, chances, dist.get_rank(), dist.get_world_size())

    numbers, divisor = fill(draw, wanted)
    return {"numbers": list(numbers), "divisor": divisor, "turns": turns}
