# mistake: torch.chunk gives fewer than N chunks if there are few elements
# state: crashed
# check: raises
# message: (shape (3,), float32): rank

import torch
import torch.distributed as dist


def ring_all_reduce(tensor):
    rank, world = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world, (rank + 1) % world
    chunks = tensor.view(-1).chunk(world)
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
