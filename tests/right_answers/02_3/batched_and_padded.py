# route: batch_isend_irecv over padded chunks, the other way round

import torch
import torch.distributed as dist


def exchange(out, into, target, source):
    operations = [dist.P2POp(dist.isend, out, target), dist.P2POp(dist.irecv, into, source)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def ring_all_reduce(tensor):
    rank, world = dist.get_rank(), dist.get_world_size()
    if world == 1:
        return
    size = -(-tensor.numel() // world)
    chunks = tensor.new_zeros(world, size)
    chunks.view(-1)[: tensor.numel()] = tensor.view(-1)
    left, right = (rank - 1) % world, (rank + 1) % world
    for k in range(world - 1):
        received = torch.empty_like(chunks[0])
        exchange(chunks[(rank + k) % world], received, left, right)
        chunks[(rank + k + 1) % world] += received
    for k in range(world - 1):
        received = torch.empty_like(chunks[0])
        exchange(chunks[(rank + k - 1) % world], received, left, right)
        chunks[(rank + k) % world] = received
    tensor.view(-1).copy_(chunks.view(-1)[: tensor.numel()])
