"""Inside a rank, for 12.2: call odd_ranks on replicas that are equal or differ, and report what it changes."""

import torch
import torch.distributed as dist
from torch import nn

from ddp_course.grader.harness.tensors import fingerprint

NORM = "running statistics of a BatchNorm, by each rank's own batch"
WEIGHT_OR_MOMENTUM = "a weight on one rank and the momentum on another"
BETAS = "the betas of the second group"


def drive(odd_ranks, what, ranks):
    """Make the change `what` on `ranks` and call odd_ranks. Returns its result, and the parts that it touched."""
    steps = 0 if what == "before the first step" else 2
    model, optimizer = trained(steps, momentum=what != "SGD without momentum")
    torch.manual_seed(1000 + dist.get_rank())
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape).to(parameter.dtype)  # as if of this rank's batch
    if what == NORM:
        model.norm.running_mean += dist.get_rank()
    if what in CHANGES and dist.get_rank() in ranks:
        with torch.no_grad():
            CHANGES[what](model, optimizer)
    old = fingerprints(model, optimizer)
    returned = odd_ranks(model, optimizer)
    new = fingerprints(model, optimizer)
    return {"returned": returned, "touched": [name for name in old if old[name] != new[name]]}


class Model(nn.Module):
    """Parameters and buffers of many kinds. Its output does not matter."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(24, 24), nn.Linear(24, 24)
        self.transposed = nn.Parameter(torch.randn(6, 24).t())  # a view that is not contiguous
        self.coarse = nn.Parameter(torch.randn(24).bfloat16())
        self.scalar = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.randn(24), requires_grad=False)
        self.norm = nn.BatchNorm1d(24)
        self.register_buffer("positions", torch.linspace(0, 1, 24), persistent=False)  # not in the state_dict
        self.register_buffer("padding", torch.tensor([0.0, float("nan"), 1.0]))
        self.register_buffer("nothing_yet", torch.empty(0))
        self.register_buffer("tokens_read", torch.tensor(2**60))  # float64 does not hold all integers above 2**53
        self.register_buffer("running_mean", torch.linspace(1, 2, 24))  # of no BatchNorm

    def forward(self, x):
        x = self.norm(self.second(torch.tanh(self.first(x)) + self.positions)) @ self.transposed
        return (x.sum() * self.coarse.float().sum() * self.scalar.float()).square()


def trained(steps, momentum):
    """The same model and optimizer on every rank."""
    torch.manual_seed(7)
    model = Model()
    groups = [
        {"params": [*model.first.parameters(), *model.second.parameters()]},
        {"params": [model.transposed, model.coarse, model.scalar, *model.norm.parameters()], "lr": 0.002},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.001) if momentum else torch.optim.SGD(groups, lr=0.001)
    for _ in range(steps):
        loss = model(torch.randn(8, 24))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.first.eval()  # while the rest trains
    optimizer.param_groups[0]["lr"] = torch.tensor(0.001)
    if steps and momentum:
        optimizer.state[model.second.bias]["step"] = steps  # a plain number, as some optimizers keep it
    return model, optimizer


def fingerprints(model, optimizer):
    """The fingerprints of everything that odd_ranks must not change, by name of the part."""
    state = [value for entry in optimizer.state.values() for value in entry.values()]
    settings = [setting for group in optimizer.param_groups for setting in group.items() if setting[0] != "params"]
    parts = {
        "a parameter": list(model.parameters()),
        "a gradient": [parameter.grad for parameter in model.parameters() if parameter.grad is not None],
        "a buffer": list(model.buffers()),
        "the optimizer's state": [len(optimizer.state), *state],  # a defaultdict: a look-up may add an entry
        "the optimizer's settings": [part for setting in settings for part in setting],
        "the random state": [torch.get_rng_state()],
        "the training mode of a module": [module.training for module in model.modules()],
        "a requires_grad flag": [parameter.requires_grad for parameter in model.parameters()],
    }
    return {
        name: [f"{value.dtype} {fingerprint([value])}" if torch.is_tensor(value) else repr(value) for value in values]
        for name, values in parts.items()
    }


# ---- changes of a model and its optimizer ---------------------------------------------------------------------------


def flip_last_bit(element):
    """Flip the last bit of an element, a tensor without dimensions, in place."""
    integer_type = {2: torch.int16, 4: torch.int32, 8: torch.int64}[element.element_size()]
    element.view(integer_type).bitwise_xor_(1)


def swap(first, second):
    copy_of_first = first.clone()
    first.copy_(second)
    second.copy_(copy_of_first)


def double(entries, name):
    entries[name] *= 2


def keep_sum(model, _):
    """Move 2**-10 from the largest to the smallest weight, which is negative: both shrink, so nothing is rounded."""
    weights = model.first.weight.view(-1)
    weights[weights.argmin()] += 2**-10
    weights[weights.argmax()] -= 2**-10


def flip_weight_or_momentum(model, optimizer):
    momentum = optimizer.state[model.second.weight]["exp_avg"]
    flip_last_bit(model.first.weight[0, 0] if dist.get_rank() == 1 else momentum[0, 0])


CHANGES = {
    "the last bit of one weight": lambda model, _: flip_last_bit(model.first.weight[7, 3]),
    "the last bit of a weight in bfloat16": lambda model, _: flip_last_bit(model.coarse[23]),
    "the last bit of a weight that is a transposed view": lambda model, _: flip_last_bit(model.transposed[23, 5]),
    "the last bit of a weight without dimensions": lambda model, _: flip_last_bit(model.scalar),
    "the last bit of a frozen weight": lambda model, _: flip_last_bit(model.frozen[0]),
    "two weights that changed places": lambda model, _: swap(model.first.weight[0, 0], model.first.weight[3, 5]),
    "two weights changed, their sum as before": keep_sum,
    "two layers that changed places": lambda model, _: swap(model.first.weight, model.second.weight),
    "the last bit of a weight of the norm": lambda model, _: flip_last_bit(model.norm.weight[1]),
    "a buffer that is called running_mean": lambda model, _: flip_last_bit(model.running_mean[2]),
    "a buffer that is not in the state_dict": lambda model, _: flip_last_bit(model.positions[12]),
    "the last bit of a large integer": lambda model, _: flip_last_bit(model.tokens_read),
    "the sign of a zero": lambda model, _: model.padding[0].neg_(),
    "a NaN in another place": lambda model, _: swap(model.padding[0], model.padding[1]),
    "the last bit of the momentum": lambda model, optimizer: flip_last_bit(
        optimizer.state[model.second.weight]["exp_avg"][0, 1]
    ),
    "the last bit of the second moment": lambda model, optimizer: flip_last_bit(
        optimizer.state[model.second.weight]["exp_avg_sq"][23, 23]
    ),
    "the step count": lambda model, optimizer: double(optimizer.state[model.second.weight], "step"),
    "the step count that is no tensor": lambda model, optimizer: double(optimizer.state[model.second.bias], "step"),
    "the learning rate of the second group": lambda _, optimizer: double(optimizer.param_groups[1], "lr"),
    "the weight decay of the second group": lambda _, optimizer: double(optimizer.param_groups[1], "weight_decay"),
    "the last bit of a learning rate that is a tensor": lambda _, optimizer: flip_last_bit(
        optimizer.param_groups[0]["lr"]
    ),
    BETAS: lambda _, optimizer: optimizer.param_groups[1].update(betas=(0.9, 0.998)),
    WEIGHT_OR_MOMENTUM: flip_weight_or_momentum,
}
