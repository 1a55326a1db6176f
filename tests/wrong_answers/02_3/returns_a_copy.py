# mistake: works on a copy and returns it
# state: wrong
# check: every rank holds the sum
# message: rank 0 returned the sum, but the tensor it was given holds

import torch
import torch.distributed as dist


def ring_all_reduce(tensor):
    rank, world = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world, (rank + 1) % world
    result = tensor.clone()
    chunks = result.view(-1).tensor_split(world)
    for k in range(world - 1):
        mine = chunks[(rank - k - 1) % world]
        received = torch.empty_like(mine)
        sending = dist.isend(chunks[(rank - k) % world], right)
        dist.recv(received, left)
        sending.wait()
        mine += received
    for k in range(world - 1):
        sending = dist.isend(chunks[(rank + 1 - k) % world], right)
        dist.recv(chunks[(rank - k) % world], left)
        sending.wait()
    return result
