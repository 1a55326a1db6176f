# mistake: returns the right loss and prints that of rank 0's own points
# state: wrong
# check: one rank reports
# message: rank 0 printed a held-out loss of

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def symptom(epochs: int, buffers: bool) -> tuple[str, str]:
    """How the broken script ends on two ranks, "crash" or "hang", and the collective that rank 0 is in then."""
    if epochs > 1:  # rank 1 goes on to train: gradients of 5 numbers meet the 2 of the evaluation
        return "crash", "all_reduce"
    return "hang", "broadcast" if buffers else "all_reduce"  # rank 1 is in the barrier and sends nothing that fits


def not_on_all(logs: list[list[str]]) -> dict[str, list[int]]:
    """The collectives that some rank never started, each with the ranks that did: {"all_reduce, line 53": [0]}."""
    entries = dict.fromkeys(entry for log in logs for entry in log)
    found = {entry: [rank for rank, log in enumerate(logs) if entry in log] for entry in entries}
    return {entry: ranks for entry, ranks in found.items() if len(ranks) < len(logs)}


class Line(nn.Module):
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

        with torch.no_grad():  # on every rank, with the bare model: its forward is silent
            errors = (model.module(held_out_x) - held_out_y).square()
        total = torch.stack([errors.sum(), torch.tensor(len(errors))])
        dist.all_reduce(total)
        losses.append((total[0] / total[1]).item())
        if rank == 0:  # one of them speaks
            print(f"epoch {epoch + 1}: held-out loss {errors.mean():.4f}", flush=True)

    dist.barrier()
    return losses


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=4))
    train(epochs=2, buffers=True)
    gc.collect()  # what is left of the DDP wrapper goes before the group does
    dist.destroy_process_group()
