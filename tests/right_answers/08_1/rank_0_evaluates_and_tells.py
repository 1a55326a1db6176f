# route: rank 0 evaluates all points with the bare model and broadcasts; sets in the detector

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EPOCHS, BUFFERS = 2, True


def symptom(epochs, buffers):
    table = {(1, True): ["hang", "broadcast"], (1, False): ["hang", "all_reduce"]}
    return table.get((epochs, buffers), ["crash", "all_reduce"])


def not_on_all(logs):
    sets = [set(log) for log in logs]
    rare = set().union(*sets) - set.intersection(*sets)
    return {entry: [rank for rank, one in enumerate(sets) if entry in one] for entry in sorted(rare)}


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
    model = DistributedDataParallel(Line(), forward_sync_buffers=buffers)
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

        box = [None]
        if rank == 0:
            all_x, all_y = points(7, seed=3)
            with torch.no_grad():
                box[0] = (model.module(all_x) - all_y).square().mean().item()
            print(f"epoch {epoch + 1}: held-out loss {box[0]:.4f}", flush=True)
        dist.broadcast_object_list(box, src=0)
        losses.append(box[0])

    dist.barrier()
    return losses


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=4))
    train(EPOCHS, BUFFERS)
    gc.collect()  # what is left of the DDP wrapper goes before the group does
    dist.destroy_process_group()
