# mistake: pads below N elements only: torch.chunk gives fewer than N chunks of 9 elements too
# state: crashed
# check: raises
# message: (shape (9,), float32): rank

import torch
import torch.distributed as dist


def ring_all_reduce(tensor: torch.Tensor) -> None:
    """Sum `tensor` over all ranks, in place, with messages between neighbours in a ring only."""
    rank, world = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world, (rank + 1) % world
    flat = tensor.view(-1)
    if tensor.numel() < world:  # fewer elements than ranks
        flat = torch.cat([flat, flat.new_zeros(world - tensor.numel())])
    chunks = flat.chunk(world)

    for k in range(world - 1):  # what arrives is added: in the end chunk rank + 1 is complete here
        mine = chunks[(rank - k - 1) % world]
        received = torch.empty_like(mine)
        sending = dist.isend(chunks[(rank - k) % world], right)
        dist.recv(received, left)
        sending.wait()
        mine += received

    for k in range(world - 1):  # what arrives is complete: it replaces
        sending = dist.isend(chunks[(rank + 1 - k) % world], right)
        dist.recv(chunks[(rank - k) % world], left)
        sending.wait()
    tensor.view(-1).copy_(flat[: tensor.numel()])
