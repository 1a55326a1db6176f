"""A rank of four: two of them save a model and its optimizer into a folder, and all four load what was saved.

The first two also save once in the background, while the weights change.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ddp_course.checkpoint import distributed_checkpoint


def trained(kind, seed, group, mesh):
    """A model and its optimizer after three steps: replicated over `group`, or sharded over `mesh`."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, 12), nn.Tanh(), nn.Linear(12, 5))
    if kind == "sharded":
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 7) * (step + 1)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def weights_and_moments(model, optimizer):
    model = getattr(model, "module", model)
    moments = [whole(optimizer.state[p]["exp_avg_sq"]).clone() for p in model.parameters()]
    return {name: whole(p).detach().clone() for name, p in model.named_parameters()}, moments


def main():
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    pair, pair_of_the_thread = dist.new_group([0, 1]), dist.new_group([0, 1])
    pairs = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pair", "shard"))
    all_ranks = init_device_mesh("cpu", (4,))

    for kind in ("replicated", "sharded"):
        if rank < 2:
            model, optimizer = trained(kind, 1, pair, pairs["shard"])
            saved = weights_and_moments(model, optimizer)
            path = distributed_checkpoint.save(folder / kind, 3, model, optimizer, pair)
            assert path.is_dir() and distributed_checkpoint.newest(folder / kind) == path
            if rank == 0:
                torch.save(saved, folder / f"{kind}.pt")
        dist.barrier()
        model, optimizer = trained(kind, 2, None, all_ranks)
        step = distributed_checkpoint.load(folder / kind / "step_000003", model, optimizer)
        weights, moments = weights_and_moments(model, optimizer)
        saved_weights, saved_moments = torch.load(folder / f"{kind}.pt")
        assert step == 3
        assert all(torch.equal(weights[name], saved_weights[name]) for name in saved_weights), kind
        assert all(map(torch.equal, moments, saved_moments)), kind

    if rank < 2:
        model, optimizer = trained("replicated", 1, pair, None)
        folder = folder / "background"
        _, finish = distributed_checkpoint.save_in_background(folder, 3, model, optimizer, pair_of_the_thread)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        assert distributed_checkpoint.newest(folder) is None
        assert finish() == folder / "step_000003"
    dist.barrier()
    os._exit(0)  # replicas and threads still hold the groups


if __name__ == "__main__":
    main()
