# mistake: seeds the common generator, draws, and seeds it at random afterwards
# state: wrong
# check: other randomness is left alone
# message: was in another state than before

import hashlib
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F

TOKENS, VOCABULARY, STEPS, BATCH = 20_000, 50, 60, 200


def odd_ranks(data: torch.Tensor) -> list[int]:
    """The ranks whose data is not that of rank 0, in order; every rank calls this and gets the same list."""
    mine = hashlib.sha256(data.numpy().tobytes()).digest()
    hashes = [None] * dist.get_world_size()
    dist.all_gather_object(hashes, mine)
    return [rank for rank, one in enumerate(hashes) if one != hashes[0]]


def make_data() -> torch.Tensor:
    """The tokens that all ranks share, int64: a random start, then each token near the one before it."""
    torch.default_generator.manual_seed(1)
    steps = torch.randint(-2, 4, (TOKENS,))
    data = (torch.randint(VOCABULARY, ()) + steps.cumsum(0)) % VOCABULARY
    torch.default_generator.seed()  # random again, on every rank
    return data


def data_and_mask():
    """What a rank has before its first step: the data, and which of 16 units its dropout leaves out."""
    data = make_data()
    return data, torch.rand(16) < 0.5


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    rank, world = dist.get_rank(), dist.get_world_size()
    data, _ = data_and_mask()
    print(f"rank {rank}: ranks with other data than rank 0: {odd_ranks(data)}")
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
