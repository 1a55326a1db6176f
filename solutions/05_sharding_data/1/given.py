"""Train a next-token table on made-up tokens; every rank takes its share of the positions."""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F

TOKENS, VOCABULARY, STEPS, BATCH = 20_000, 50, 22, 200


def make_data():
    """The tokens that all ranks share, int64: a random start, then each token near the one before it."""
    steps = torch.randint(-2, 4, (TOKENS,))
    return (torch.randint(VOCABULARY, ()) + steps.cumsum(0)) % VOCABULARY


def data_and_mask():
    """The state of a rank before its first step: the data, and which of 16 units its dropout leaves out."""
    data = make_data()
    return data, torch.rand(16) < 0.5


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    rank, world = dist.get_rank(), dist.get_world_size()
    data, _ = data_and_mask()  # a table has no units to drop; a model would
    train, val = data[: -TOKENS // 10], data[-TOKENS // 10 :]

    table = torch.zeros(VOCABULARY, VOCABULARY, requires_grad=True)  # the same on all ranks
    for step in range(STEPS):
        first = (step * world + rank) * BATCH % (len(train) - BATCH)  # no rank reads another one's positions
        batch = train[first : first + BATCH + 1]
        [gradient] = torch.autograd.grad(F.cross_entropy(table[batch[:-1]], batch[1:]), table)
        dist.all_reduce(gradient)
        table.data -= 40.0 * gradient / world

    loss = F.cross_entropy(table[val[:-1]], val[1:]).detach()
    print(f"rank {rank}: validation loss {loss:.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
