"""Inside a rank, for 28.1: the loss of the learner's function, its gradients, and the largest tensor it makes."""

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ddp_course.grader.harness.tensors import random_tensor

WIDTH = 4


class Largest(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        returned = operation(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(returned) if torch.is_tensor(leaf)]
        self.elements = max(self.elements, *sizes, 0)
        return returned


def inputs(seed, rows, world):
    """Images and texts of the global batch, each of length 1, and the scale."""
    embeddings = random_tensor(seed, 2, rows * world, WIDTH)
    images, texts = embeddings / embeddings.norm(dim=2, keepdim=True)
    return images, texts, torch.tensor(5.0, dtype=torch.float64)


def drive(contrastive_loss, seed, rows):
    """The loss of this rank's rows, its gradients for images, texts and scale, and the size of the largest tensor."""
    rank, world = dist.get_rank(), dist.get_world_size()
    *embeddings, scale = inputs(seed, rows, world)
    leaves = [part[rank * rows : (rank + 1) * rows].clone() for part in embeddings] + [scale]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    with Largest() as largest:
        loss = contrastive_loss(*leaves)
        loss.backward()
    images, texts, scale = (torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves)
    # DDP averages over the ranks: in a tower the gradients of its rows count 1 / world.
    return {
        "loss": loss.item(),
        "images": images / world,
        "texts": texts / world,
        "scale": scale.item(),
        "largest": largest.elements,
    }
