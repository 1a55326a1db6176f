# mistake: every rank sends before any receives
# state: wrong
# check: does not end
# message: rank 0 was in send to rank 1 (line 17), rank 1 was in send to rank 2 (line 17)

import torch
import torch.distributed as dist


def ring_all_reduce(tensor):
    rank, world = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world, (rank + 1) % world
    chunks = tensor.view(-1).tensor_split(world)
    for k in range(world - 1):
        mine = chunks[(rank - k - 1) % world]
        received = torch.empty_like(mine)
        dist.send(chunks[(rank - k) % world], right)
        dist.recv(received, left)
        mine += received
    for k in range(world - 1):
        dist.send(chunks[(rank + 1 - k) % world], right)
        dist.recv(chunks[(rank - k) % world], left)
