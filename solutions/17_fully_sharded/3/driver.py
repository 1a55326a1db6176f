"""Inside a rank, for 17.3: a run of one process, its checkpoint on rank 0, and an FSDP2 run that continues from it."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ddp_course.grader.harness.tensors import largest_gap, model_gaps, random_tensor, whole

WIDTH, BATCH, LEARNING_RATE = 7, 12, 0.02
STEPS_BEFORE, STEPS_AFTER = 5, 3  # the checkpoint


class Model(nn.Module):
    """Matrices and vectors alternate, so that the groups of the optimizer have another order than the model."""

    def __init__(self, frozen):
        super().__init__()
        self.enter, self.blocks = nn.Linear(5, WIDTH), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.leave = nn.Linear(WIDTH, 2)
        self.blocks[0].requires_grad_(not frozen)
        self.register_buffer("scale", torch.rand(2) + 0.5)

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.leave(x) * self.scale


def optimizer_of(model, kind):
    if kind == "one group":
        return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [
        {"params": vectors, "weight_decay": 0.0},
        {"params": matrices, "weight_decay": 0.2, "lr": LEARNING_RATE / 2},
    ]
    if kind == "SGD":
        return torch.optim.SGD(groups, lr=LEARNING_RATE, momentum=0.9)
    return torch.optim.AdamW(groups, lr=LEARNING_RATE)


def drive(load, kind):
    """The gaps of weights, optimizer state and settings to one process, after `load` and STEPS_AFTER steps later."""
    rank, world = dist.get_rank(), dist.get_world_size()
    one_process = new_model(1, kind)
    one_process_optimizer = optimizer_of(one_process, kind)
    for step in range(STEPS_BEFORE):
        one_process.leave.requires_grad_(kind != "frozen" or step > 1)  # joins later: a smaller step count
        train_step(one_process, one_process_optimizer, batch(step))
        for group in one_process_optimizer.param_groups:
            group["lr"] *= 0.9  # as a schedule does; it may change other settings, too
            group.update({"betas": (0.8, 0.99)} if "betas" in group else {"momentum": 0.85, "nesterov": True})
    checkpoint = copy.deepcopy({"model": one_process.state_dict(), "optimizer": one_process_optimizer.state_dict()})
    mesh, model = init_device_mesh("cpu", (world,)), new_model(2, kind)
    for part in [*model.blocks, model]:
        fully_shard(part, mesh=mesh)
    optimizer = optimizer_of(model, kind)
    load(model, optimizer, checkpoint if rank == 0 else None)
    report = {
        "weights": model_gaps(model, one_process),
        "settings": settings(optimizer),
        "right settings": settings(one_process_optimizer),
        "state": state_gaps(model, optimizer, one_process, one_process_optimizer),
    }
    for step in range(STEPS_BEFORE, STEPS_BEFORE + STEPS_AFTER):
        train_step(one_process, one_process_optimizer, batch(step))
        train_step(model, optimizer, batch(step)[rank::world])
    return report | {"after": model_gaps(model, one_process)}


def new_model(seed, kind):
    torch.manual_seed(seed)
    return Model(frozen=kind == "frozen").double()


def batch(step):
    return random_tensor(step, BATCH, 5)


def train_step(model, optimizer, x):
    optimizer.zero_grad()
    (model(x) - x[:, :2] * x[:, 2:4]).square().mean().backward()
    optimizer.step()


def settings(optimizer):
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def state_gaps(model, optimizer, one_process, one_process_optimizer):
    """[parameter's name, entry, gap] for each entry of the optimizer's state. A collective.

    The gap is None if the entry is missing, or not sharded although it is no scalar, on any rank.
    """
    entries, parameters = [], dict(model.named_parameters())
    for name, parameter in one_process.named_parameters():
        for entry, right in one_process_optimizer.state.get(parameter, {}).items():
            value = optimizer.state.get(parameters[name], {}).get(entry)
            present = torch.tensor(int(torch.is_tensor(value) and (not right.ndim or hasattr(value, "full_tensor"))))
            dist.all_reduce(present, op=dist.ReduceOp.MIN)
            entries.append([name, entry, largest_gap(whole(value), right) if present else None])
    return entries
