"""Evaluate a puzzle model on every rank's share of the test puzzles; rank 0 reports."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

TOTAL, BATCH = 9, 7


def score(start, end):
    """The losses (n,) of the puzzles from `start` to `end`, and which are solved (n,). This model solves them all."""
    puzzles = torch.arange(TOTAL)[start:end]
    return 1.0 + puzzles.double(), puzzles >= 0


def shares(total, batch, rank, world):
    """For each batch of the test set: (start, end) of what this rank evaluates of it."""
    local_batch = batch // world
    starts = [first + rank * local_batch for first in range(0, total, batch)]
    return [(start, min(start + local_batch, total)) for start in starts]


def evaluate(score, total, batch):
    """Mean loss, accuracy and number of puzzles."""
    rank, world = dist.get_rank(), dist.get_world_size()
    loss, solved, examples = 0.0, 0, 0
    for start, end in shares(total, batch, rank, world):
        losses, right = score(start, end)
        loss += losses.sum().item()
        solved += right.sum().item()
        examples += end - start
    metrics = {"loss": loss / examples, "accuracy": solved / examples, "examples": examples}
    dist.reduce(torch.tensor(list(metrics.values())), dst=0)
    if rank == 0:
        return metrics


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    for start, end in shares(TOTAL, BATCH, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])):
        print(f"puzzles {start} to {end}", flush=True)
    print("metrics", evaluate(score, TOTAL, BATCH), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
