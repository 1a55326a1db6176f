# mistake: everybody sends to rank 0, which adds and sends back
# state: wrong
# check: only neighbours
# message: rank 0 received from rank 2; its neighbours are 3 and 1

import torch
import torch.distributed as dist


def ring_all_reduce(tensor):
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return
    received = torch.empty_like(tensor)
    for source in range(1, world):
        dist.recv(received, source)
        tensor += received
    for target in range(1, world):
        dist.send(tensor, target)
