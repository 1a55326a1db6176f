# mistake: cuts into chunks of size // N and forgets the rest
# state: wrong
# check: every rank holds the sum
# message: (shape (10,), float32): on rank 0 2 of 10 elements are wrong, the first at 8

import torch
import torch.distributed as dist


def ring_all_reduce(tensor):
    rank, world = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world, (rank + 1) % world
    size = tensor.numel() // world
    chunks = tensor.view(-1)[: size * world].view(world, size)
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
