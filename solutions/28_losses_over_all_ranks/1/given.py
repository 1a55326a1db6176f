"""One step of two towers with a contrastive loss over all ranks, and how far it is from that of one process."""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a process group
from torch.nn.functional import cross_entropy, normalize

ROWS = 6  # pairs of an image and a text on each rank


def gather(rows):
    """The rows of all ranks, in the order of the ranks."""
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.detach())
    return torch.cat(parts)


def contrastive_loss(images, texts, scale):
    """The loss of this rank's pairs: each image against the texts of all ranks, each text against their images."""
    labels = torch.arange(len(images))
    of_images = cross_entropy(scale * images @ gather(texts).T, labels)
    of_texts = cross_entropy(scale * texts @ gather(images).T, labels)
    return (of_images + of_texts) / 2


def gradients(loss, weights, images, texts):
    scale = weights[2].exp()
    value = loss(normalize(images @ weights[0], dim=1), normalize(texts @ weights[1], dim=1), scale)
    return torch.autograd.grad(value, weights)


def one_process(images, texts, scale):
    logits, labels = scale * images @ texts.T, torch.arange(len(images))
    return (cross_entropy(logits, labels) + cross_entropy(logits.T, labels)) / 2


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same weights and the same global batch on every rank
    weights = [torch.randn(5, 4).double(), torch.randn(3, 4).double(), torch.tensor(2.0).double()]
    weights = [weight.requires_grad_() for weight in weights]
    images, texts = torch.randn(ROWS * size, 5).double(), torch.randn(ROWS * size, 3).double()
    right = gradients(one_process, weights, images, texts)
    own = gradients(contrastive_loss, weights, images.chunk(size)[rank], texts.chunk(size)[rank])
    for name, gradient, expected in zip(("image tower", "text tower", "temperature"), own, right, strict=True):
        dist.all_reduce(gradient)
        gap = (gradient / size - expected).norm() / expected.norm()  # the mean over the ranks, as DDP takes it
        if rank == 0:
            print(f"{name}: the gradient is off by {100 * gap:.1f} %")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
