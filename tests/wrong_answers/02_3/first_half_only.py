# mistake: stops after the reduce-scatter: each rank has one complete chunk
# state: wrong
# check: every rank holds the sum
# message: on rank 0 6 of 8 elements are wrong

import torch
import torch.distributed as dist


def ring_all_reduce(tensor):
    rank, world = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world, (rank + 1) % world
    chunks = tensor.view(-1).tensor_split(world)
    for k in range(world - 1):
        mine = chunks[(rank - k - 1) % world]
        received = torch.empty_like(mine)
        sending = dist.isend(chunks[(rank - k) % world], right)
        dist.recv(received, left)
        sending.wait()
        mine += received
