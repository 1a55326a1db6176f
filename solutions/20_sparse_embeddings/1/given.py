"""A table with a row for each puzzle, trained by sign-SGD: a rank updates the rows it used and sends its updates."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

ROWS, LR = 5, 0.1


def batch_of(rank):
    """The puzzles of one rank's batch, ids (3,), and the gradients of their rows (3, 1)."""
    ids = [[0, 1, 1], [0, 3, 4]][rank % 2]
    gradients = [[3.0, 1.0, 2.0], [-1.0, 1.0, -1.0]][rank % 2]
    return torch.tensor(ids), torch.tensor(gradients, dtype=torch.float64).unsqueeze(1)


def all_gathered(tensor):
    """The tensors of all ranks, of equal shapes, in the order of the ranks."""
    received = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(received, tensor)
    return received


def sparse_step(table, ids, gradients, lr):
    """On every rank: move the rows that any rank has used, in place, against the sign of their gradient.

    table (rows, width), equal on all ranks; ids (n,), gradients (n, width) of this rank, with n equal on all ranks.
    """
    updates = lr * gradients.sign()
    table[ids] -= updates
    for their_ids, their_updates in zip(all_gathered(ids), all_gathered(updates), strict=True):
        table[their_ids] -= their_updates


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    table = torch.zeros(ROWS, 1, dtype=torch.float64)
    sparse_step(table, *batch_of(int(os.environ["RANK"])), LR)
    print("table", *(f"{value:+.1f}" for value in table.flatten().tolist()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
