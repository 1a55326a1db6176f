"""Sample until a batch is full of groups that teach; beside what one process would learn from."""

import random
from datetime import timedelta

import torch.distributed as dist

PER_ROUND, WANTED = 12, 10  # groups of a round, over all ranks, and of a batch


def fill(draw, wanted):
    """The numbers of this rank's groups of a batch, and what all ranks divide their sums by."""
    own, turn, size = [], 0, dist.get_world_size()
    while len(own) < wanted // size:
        own += draw(turn)
        turn += 1
    return own, len(own) * size


def draw_of(rank, size, rounds):
    """A function that gives the numbers of a rank's groups of a round whose rewards differ, and counts its calls."""

    def draw(turn):
        rounds.append(turn)
        numbers = range(turn * PER_ROUND + rank, (turn + 1) * PER_ROUND, size)
        return [number for number in numbers if random.Random(128_000 + number).random() < 0.4]

    return draw


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, size, rounds, right, turn = dist.get_rank(), dist.get_world_size(), [], [], 0
    one_process = draw_of(0, 1, [])
    while len(right) < WANTED:
        right += one_process(turn)
        turn += 1
    own, divisor = fill(draw_of(rank, size, rounds), WANTED)
    others = len(set(own) - set(right[:WANTED]))
    print(f"{len(rounds)} rounds, one process {turn}; divides by {divisor}; {others} groups are not in the batch")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
