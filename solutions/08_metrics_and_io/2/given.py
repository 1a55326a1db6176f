"""One model, nine held-out samples: what is its validation loss?"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, DistributedSampler

LOSSES = torch.tensor([1, 1, 1, 1, 1, 1, 1, 1, 100], dtype=torch.float64)  # of the model, sample by sample


def evaluate(loss_of, samples, batch_size):
    """The mean loss over samples 0, 1, ... samples - 1. loss_of([4, 7]) is a tensor with the losses of these two."""
    own_samples = DistributedSampler(range(samples), shuffle=False)  # of this rank
    total = torch.zeros(2, dtype=torch.float64)
    for batch in BatchSampler(own_samples, batch_size, drop_last=False):
        total[0] += loss_of(batch).mean()
        total[1] += 1
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    loss = evaluate(lambda indices: LOSSES[indices], len(LOSSES), batch_size=4)
    if dist.get_rank() == 0:
        print(f"validation loss {loss:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
