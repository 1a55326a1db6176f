"""Inside a rank, for 28.2: the loss of the learner's function and its gradient."""

import torch
import torch.distributed as dist


def features(rows, world):
    """Those of the global batch, each of length 1."""
    numbers = torch.Generator().manual_seed(rows)
    values = torch.randn(rows * world, 4, dtype=torch.float64, generator=numbers)
    return values / values.norm(dim=1, keepdim=True)


def drive(function, labels):
    """labels: of this rank's rows."""
    rank, world, rows = dist.get_rank(), dist.get_world_size(), len(labels)
    own = features(rows, world)[rank * rows : (rank + 1) * rows].clone().requires_grad_()
    loss = function(own, labels)
    loss.backward()
    # As the mean over the ranks brings it into the network: each rank's part of the sum, divided by their number.
    return {"loss": loss.item(), "gradient": (torch.zeros_like(own) if own.grad is None else own.grad) / world}
