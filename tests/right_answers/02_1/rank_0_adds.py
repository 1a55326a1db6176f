# route: sends sum and count to rank 0, which adds and tells everybody

import torch
from torch.distributed import broadcast, get_rank, get_world_size, recv, send


def global_mean(values):
    total = torch.tensor([sum(values), len(values)], dtype=torch.float64)
    if get_rank() > 0:
        send(total, dst=0)
    else:
        for source in range(1, get_world_size()):
            other = torch.empty_like(total)
            recv(other, src=source)
            total += other
    broadcast(total, src=0)
    return total[0] / total[1]
