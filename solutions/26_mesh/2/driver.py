"""Inside a rank, for 26.2: training on a mesh, resumed on another one, and in one process."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from .given import Enter, Leave

VOCABULARY, WIDTH, HIDDEN, CONTEXT, PER_UPDATE, STEPS = 7, 6, 8, 3, 4, 3  # steps on each mesh


def drive(build, *meshes):
    """A report for each step: the windows that this rank read, its loss, and the largest gap of its weights."""
    whole, reports, state = Model(None), [], None
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.2)
    for number, (dp, tp) in enumerate(meshes):
        mesh, data = new_mesh(dp, tp), Data()
        model = Model(mesh.tp, whole)
        training = build(model, torch.optim.SGD(model.parameters(), lr=0.2), data, mesh, PER_UPDATE)
        if number:
            box = [state]
            dist.broadcast_object_list(box, src=0)  # what rank 0 has saved
            training.load_state_dict(box[0])
        for step in range(number * STEPS, (number + 1) * STEPS):
            data.read = []
            loss = training.step()
            right = one_process_step(whole, optimizer, step)
            reports.append(
                {
                    "mesh": [dp, tp],
                    "windows": data.read,
                    "loss": loss,
                    "right": right,
                    "gap": model.gap(whole),
                    "parameter_count": sum(p.numel() for p in model.parameters()),
                }
            )
        state = training.state_dict()
    return reports


def new_mesh(dp, tp):
    """Axes dp and tp over all ranks, of which tp counts fastest; each has size, rank and group."""
    rank, grid = dist.get_rank(), torch.arange(dp * tp).view(dp, tp)
    groups = [[dist.new_group(line) for line in lines.tolist()] for lines in (grid.T, grid)]
    return SimpleNamespace(
        dp=SimpleNamespace(size=dp, rank=rank // tp, group=groups[0][rank % tp]),
        tp=SimpleNamespace(size=tp, rank=rank % tp, group=groups[1][rank // tp]),
    )


def one_process_step(whole, optimizer, step):
    """One step of the whole model with the windows of all replicas; returns its loss."""
    inputs, targets = windows(windows_of(step))
    loss = F.cross_entropy(whole(inputs).flatten(0, 1), targets.flatten(), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def windows_of(step):
    """The numbers of the windows of a step, over all replicas."""
    return list(range(step * PER_UPDATE, (step + 1) * PER_UPDATE))


def windows(numbers):
    """Inputs and targets; the last n % 4 of the 3 targets of window n are ignored: all in every fourth window."""
    tokens = [torch.randint(VOCABULARY, (CONTEXT + 1,), generator=torch.Generator().manual_seed(n)) for n in numbers]
    tokens = torch.stack(tokens) if tokens else torch.zeros(0, CONTEXT + 1, dtype=torch.int64)
    targets = tokens[:, 1:].clone()
    targets[torch.arange(CONTEXT) >= CONTEXT - torch.tensor(numbers, dtype=torch.int64)[:, None] % 4] = -100
    return tokens[:, :-1], targets


class Data:
    """Returns windows by their numbers, and notes the numbers in `read`."""

    def __init__(self):
        self.read = []

    def __call__(self, numbers):
        self.read = self.read + [int(number) for number in numbers]
        return windows([int(number) for number in numbers])


class Model(nn.Module):
    """The whole model (tp None), or the part of it that this rank of tp holds."""

    CUT = {"first.weight": 0, "first.bias": 0, "second.weight": 1}

    def __init__(self, tp, whole=None):
        super().__init__()
        self.tp, hidden = tp, HIDDEN // (tp.size if tp else 1)
        torch.manual_seed(1)
        self.table, self.out = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.first, self.second = nn.Linear(WIDTH, hidden), nn.Linear(hidden, WIDTH, bias=False)
        self.double()
        if whole:
            with torch.no_grad():
                for name, parameter in self.named_parameters():
                    parameter.copy_(self.part(name, whole.get_parameter(name)))

    def part(self, name, tensor):
        return tensor.chunk(self.tp.size, self.CUT[name])[self.tp.rank] if name in self.CUT else tensor

    def forward(self, tokens):
        x = self.table(tokens)
        if not self.tp or self.tp.size == 1:
            return self.out(x + self.second(F.gelu(self.first(x))))
        group = self.tp.group
        return self.out(x + Leave.apply(self.second(F.gelu(self.first(Enter.apply(x, group)))), group))

    def gap(self, whole):
        """[name, distance] of the parameter that is furthest from its part of the whole model's."""
        gaps = {
            name: (parameter - self.part(name, whole.get_parameter(name))).abs().max().item()
            for name, parameter in self.named_parameters()
        }
        worst = max(gaps, key=lambda name: gaps[name] if gaps[name] == gaps[name] else float("inf"))
        return [worst, gaps[worst]]
