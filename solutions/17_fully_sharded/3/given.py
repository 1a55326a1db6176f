"""Continue a DDP run with FSDP2. The weights are right, and no error is raised."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ddp_course.distributed import process_group

STEPS, BATCH = 30, 8  # before the checkpoint; samples of the whole batch


def load(model, optimizer, checkpoint):
    """Give the sharded model and its optimizer what is in `checkpoint`, which rank 0 has read; the others have None."""
    checkpoint = checkpoint or {"model": {}, "optimizer": {}}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, checkpoint["model"], options=options)
    set_optimizer_state_dict(model, optimizer, checkpoint["optimizer"], options=options)


def new_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).double()


def adamw(model, learning_rate=0.01):
    """Matrices with weight decay, all others without."""
    groups = ([p for p in model.parameters() if p.ndim > 1], 0.1), ([p for p in model.parameters() if p.ndim < 2], 0.0)
    return torch.optim.AdamW([{"params": params, "weight_decay": decay} for params, decay in groups], lr=learning_rate)


def train(model, optimizer, steps):
    for step in steps:
        x = torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        x = x[dist.get_rank() :: dist.get_world_size()]
        optimizer.zero_grad()
        (model(x) - x.prod(1, keepdim=True)).square().mean().backward()
        optimizer.step()


def main():
    process_group.start(60, "cpu")
    model = new_model()
    optimizer = adamw(model)
    replica = DistributedDataParallel(model)
    train(replica, optimizer, range(STEPS))
    checkpoint = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    train(replica, optimizer, [STEPS])
    sharded = fully_shard(new_model(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    its_optimizer = adamw(sharded)
    load(sharded, its_optimizer, checkpoint if dist.get_rank() == 0 else None)
    train(sharded, its_optimizer, [STEPS])
    weights = [parameter.full_tensor() for parameter in sharded.parameters()]
    gap = max((own - right).abs().max().item() for own, right in zip(weights, model.parameters(), strict=True))
    steps = [int(its_optimizer.state[parameter]["step"]) for parameter in sharded.parameters()]
    print(f"one step later: {gap:.1e} away from the run of DDP; the optimizer counted {steps} steps", flush=True)
    del replica, model, optimizer, sharded, its_optimizer
    process_group.stop()


if __name__ == "__main__":
    main()
