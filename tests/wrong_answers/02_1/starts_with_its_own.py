# mistake: each rank adds its own sum first, so that the last bits differ
# state: wrong
# check: the ranks agree
# message: (one value each: 0.1, 0.2, 0.3): rank 1 returned

import torch
import torch.distributed as dist


def global_mean(values):
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = torch.tensor([sum(values), len(values)], dtype=torch.float64)
    pairs = [torch.zeros(2, dtype=torch.float64) for _ in range(world)]
    dist.all_gather(pairs, mine)
    total, count = 0.0, 0.0
    for k in range(world):
        total += pairs[(rank + k) % world][0].item()
        count += pairs[(rank + k) % world][1].item()
    return total / count
