"""Train on every rank's share of some points; after each epoch, rank 0 reports the loss on held-out points."""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported later, by an optimizer or DDP, it would keep the group alive past its end
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_course.distributed.torch_versions import forward_sync_buffers

EPOCHS, BUFFERS = 2, True


class Line(nn.Module):
    """y = weight · x + bias, where x, four numbers, is multiplied by a buffer first."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((4,), 0.5))
        self.linear = nn.Linear(4, 1)

    def forward(self, x):
        return self.linear(x * self.scale).squeeze(-1)


def points(count, seed):
    """`count` points, the same on every rank: x of shape (count, 4), and y."""
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return x, x.sum(dim=1) + 1


def train(epochs, buffers):
    """Train on 12 points; return the mean loss on 7 held-out points after each epoch."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = DistributedDataParallel(Line(), **forward_sync_buffers(buffers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = (part[rank::world] for part in points(12, seed=2))
    held_out_x, held_out_y = (part[rank::world] for part in points(7, seed=3))

    losses = []
    for epoch in range(epochs):
        for batch in torch.arange(len(x)).split(2):
            loss = (model(x[batch]) - y[batch]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        if rank == 0:
            with torch.no_grad():
                errors = (model(held_out_x) - held_out_y).square()
            total = torch.stack([errors.sum(), torch.tensor(len(errors))])
            dist.all_reduce(total)
            losses.append((total[0] / total[1]).item())
            print(f"epoch {epoch + 1}: held-out loss {losses[-1]:.4f}", flush=True)

    dist.barrier()
    return losses


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=4))
    train(EPOCHS, BUFFERS)
    dist.destroy_process_group()
