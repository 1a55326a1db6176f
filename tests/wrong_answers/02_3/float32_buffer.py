# mistake: receives into a buffer of torch's default dtype
# state: crashed
# check: dies
# message: was killed by SIGABRT

import torch
import torch.distributed as dist


def ring_all_reduce(tensor):
    rank, world = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world, (rank + 1) % world
    chunks = tensor.view(-1).tensor_split(world)
    for k in range(world - 1):
        mine = chunks[(rank - k - 1) % world]
        received = torch.empty(mine.numel())
        sending = dist.isend(chunks[(rank - k) % world], right)
        dist.recv(received, left)
        sending.wait()
        mine += received
    for k in range(world - 1):
        sending = dist.isend(chunks[(rank + 1 - k) % world], right)
        dist.recv(chunks[(rank - k) % world], left)
        sending.wait()
