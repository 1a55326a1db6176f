# mistake: passes whole tensors round the ring
# state: wrong
# check: the bytes of a ring
# message: rank 0 sent 720 kB; a ring sends 2(N-1)/N of the 240 kB tensor = 360 kB

import torch
import torch.distributed as dist


def ring_all_reduce(tensor):
    rank, world = dist.get_rank(), dist.get_world_size()
    passing, received = tensor.clone(), torch.empty_like(tensor)
    for _ in range(world - 1):
        sending = dist.isend(passing, (rank + 1) % world)
        dist.recv(received, (rank - 1) % world)
        sending.wait()
        tensor += received
        passing, received = received, passing
