"""Data x tensor parallel: replicas of a model that is cut over the ranks of tp. The loss falls.

torchrun --standalone --nproc-per-node=2 given.py 1 2      the sizes of dp and tp
"""

import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.distributed.nn  # noqa: F401 (before there is a group)
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

VOCABULARY, WIDTH, HIDDEN, CONTEXT, PER_UPDATE, STEPS = 11, 16, 32, 4, 8, 60


class Training:
    """Steps of a model that is cut over mesh.tp, each on `per_update` windows, which mesh.dp divides."""

    def __init__(self, model, optimizer, data, mesh, per_update):
        self.model, self.optimizer, self.data, self.mesh = model, optimizer, data, mesh
        self.own, self.read = per_update // mesh.dp.size, 0  # windows of this rank: in a step, until now

    def step(self):
        """One step; returns its loss."""
        inputs, targets = self.data(self.next_windows())
        loss = F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten(), ignore_index=-100)
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad, group=self.mesh.dp.group)
            parameter.grad /= self.mesh.dp.size
        self.optimizer.step()
        total = loss.detach()
        dist.all_reduce(total, group=self.mesh.dp.group)
        return total.item() / self.mesh.dp.size

    def next_windows(self):
        first = self.read * self.mesh.dp.size + dist.get_rank() * self.own
        self.read += self.own
        return list(range(first, first + self.own))

    def state_dict(self):
        return {"read": self.read}

    def load_state_dict(self, state):
        self.read = state["read"]


class Windows:
    """Windows that count upwards. The last tokens of some are padding, without a target."""

    def __init__(self):
        self.seen = []

    def __call__(self, windows):
        numbers = torch.tensor(list(windows), dtype=torch.int64)
        self.seen += numbers.tolist()
        tokens = numbers[:, None] * 5 + torch.arange(CONTEXT + 1)
        targets = tokens[:, 1:] % VOCABULARY
        targets[torch.arange(CONTEXT) >= CONTEXT - numbers[:, None] % 4] = -100
        return tokens[:, :-1] % VOCABULARY, targets


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part, group):
        total = part.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Model(nn.Module):
    """A table and an output layer that all ranks hold, between them an MLP that is cut over tp."""

    def __init__(self, tp):
        super().__init__()
        self.group, part = tp.group, HIDDEN // tp.size
        torch.manual_seed(1)
        self.table, self.out = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        torch.manual_seed(2 + tp.rank)
        self.first, self.second = nn.Linear(WIDTH, part), nn.Linear(part, WIDTH, bias=False)

    def forward(self, tokens):
        x = self.table(tokens)
        return self.out(x + Leave.apply(self.second(F.gelu(self.first(Enter.apply(x, self.group)))), self.group))


def train(mesh):
    model, data = Model(mesh.tp), Windows()
    training = Training(model, torch.optim.SGD(model.parameters(), lr=0.3), data, mesh, PER_UPDATE)
    losses = [training.step()]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, data.seen)
    losses += [training.step() for _ in range(STEPS - 1)]
    different = len(set().union(*everyone))
    print(f"loss {losses[0]:.3f}, at last {losses[-1]:.3f}; first step: {different} different windows", flush=True)


def new_mesh(dp, tp):
    grid = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    axes = {
        name: SimpleNamespace(size=size, rank=grid.get_local_rank(name), group=grid.get_group(name))
        for name, size in {"dp": dp, "tp": tp}.items()
    }
    return SimpleNamespace(**axes)


def main():
    dist.init_process_group("gloo")
    train(new_mesh(*map(int, sys.argv[1:])))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
