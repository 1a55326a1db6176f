"""Inside a rank, for 28.2: the loss of the learner's function and its gradient."""

import torch
import torch.distributed as dist


def features(rows, world):
    """The features of the global batch, `rows` for each rank, each of length 1."""
    generator = torch.Generator().manual_seed(rows)
    values = torch.randn(rows * world, 4, dtype=torch.float64, generator=generator)
    return values / values.norm(dim=1, keepdim=True)


def drive(function, labels):
    """The loss of the learner's function for this rank's rows, and its gradient for them; labels: those of the rows."""
    rank, world, rows = dist.get_rank(), dist.get_world_size(), len(labels)
    own = features(rows, world)[rank * rows : (rank + 1) * rows].clone().requires_grad_()
    loss = function(own, labels)
    loss.backward()
    # As the mean over the ranks brings it into the network: each rank's part of the sum, divided by their number.
    return {"loss": loss.item(), "gradient": (torch.zeros_like(own) if own.grad is None else own.grad) / world}
