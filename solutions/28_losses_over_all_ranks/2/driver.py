"""Inside a rank, for 28.2: the loss of the learner's function and its gradient."""

import torch.distributed as dist

from ddp_course.grader.harness.tensors import random_tensor


def features(rows, world):
    """The features of the global batch, `rows` for each rank, each of length 1."""
    values = random_tensor(rows, rows * world, 4)
    return values / values.norm(dim=1, keepdim=True)


def drive(supervised_contrastive_loss, labels):
    """The loss of the learner's function for this rank's rows, and its gradient for them; labels: those of the rows.

    The gradient is None if none flows to them.
    """
    rank, world, rows = dist.get_rank(), dist.get_world_size(), len(labels)
    leaf = features(rows, world)[rank * rows : (rank + 1) * rows].clone().requires_grad_()
    loss = supervised_contrastive_loss(leaf, labels)
    if loss.requires_grad:
        loss.backward()
    # DDP averages over the ranks: in the network the gradient of its rows counts 1 / world.
    return {"loss": loss.item(), "gradient": None if leaf.grad is None else leaf.grad / world}
