"""Inside a rank, for 12.2: call odd_ranks on replicas that are equal or differ, and report what it changes."""

import hashlib

import torch
import torch.distributed as dist
from torch import nn

NORM = "running statistics of a BatchNorm, by each rank's own batch"
WEIGHT_OR_MOMENTUM = "a weight on one rank and the momentum on another"
WEIGHT_DECAY = "the weight decay of the second group"


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
        "the training mode of a module": [torch.tensor([module.training for module in model.modules()])],
        "a requires_grad flag": [torch.tensor([parameter.requires_grad for parameter in model.parameters()])],
    }
    return {name: [_fingerprint(tensor) for tensor in tensors] for name, tensors in parts.items()}


def _fingerprint(value):
    if not torch.is_tensor(value):
        return repr(value)
    contiguous = value.detach().contiguous().view(-1)
    return f"{value.dtype} {hashlib.sha256(contiguous.view(torch.uint8).numpy().tobytes()).hexdigest()}"


# ---- changes of a model and its optimizer ---------------------------------------------------------------------------


def flip_last_bit(tensor, index):
    """Flip the last bit of one element, in place."""
    integer_type = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    flipped = tensor[index].reshape(1).view(integer_type) ^ 1
    tensor[index] = flipped.view(tensor.dtype)[0]


def flip_in_state(name, index):
    """The change of one bit in the tensor `name` of the optimizer's state."""
    return lambda model, optimizer: flip_last_bit(optimizer.state[model.second.weight][name], index)


def swap_weights(model, _):
    weight = model.first.weight
    weight[0, 0], weight[3, 5] = weight[3, 5].item(), weight[0, 0].item()


def swap_layers(model, _):
    first, second = model.first.weight, model.second.weight
    copy_of_first = first.clone()
    first.copy_(second)
    second.copy_(copy_of_first)


def keep_sum(model, _):
    """Move 2**-10 from the largest to the smallest weight, which is negative: both shrink, so nothing is rounded."""
    weights = model.first.weight.view(-1)
    weights[weights.argmin()] += 2**-10
    weights[weights.argmax()] -= 2**-10


def increment_step_count(model, optimizer):
    optimizer.state[model.second.weight]["step"] += 1


def halve_learning_rate(_, optimizer):
    optimizer.param_groups[1]["lr"] *= 0.5


def double_weight_decay(_, optimizer):
    optimizer.param_groups[1]["weight_decay"] *= 2


def increment_plain_step_count(model, optimizer):
    optimizer.state[model.second.bias]["step"] += 1


def flip_weight_or_momentum(model, optimizer):
    if dist.get_rank() == 1:
        flip_last_bit(model.first.weight, (0, 0))
    else:
        flip_in_state("exp_avg", (0, 0))(model, optimizer)


def flip_sign_of_zero(model, _):
    model.padding[0] = -0.0


def move_nan(model, _):
    model.padding.copy_(torch.tensor([float("nan"), 0.0, 1.0]))


CHANGES = {
    "the last bit of one weight": lambda model, _: flip_last_bit(model.first.weight, (7, 3)),
    "the last bit of a weight in bfloat16": lambda model, _: flip_last_bit(model.coarse, 23),
    "the last bit of a weight that is a transposed view": lambda model, _: flip_last_bit(model.transposed, (23, 5)),
    "the last bit of a weight without dimensions": lambda model, _: flip_last_bit(model.scalar, ()),
    "the last bit of a frozen weight": lambda model, _: flip_last_bit(model.frozen, 0),
    "two weights that changed places": swap_weights,
    "two weights changed, their sum as before": keep_sum,
    "two layers that changed places": swap_layers,
    "the last bit of a weight of the norm": lambda model, _: flip_last_bit(model.norm.weight, 1),
    "a buffer that is called running_mean": lambda model, _: flip_last_bit(model.running_mean, 2),
    "a buffer that is not in the state_dict": lambda model, _: flip_last_bit(model.positions, 12),
    "the sign of a zero": flip_sign_of_zero,
    "a NaN in another place": move_nan,
    "the last bit of the momentum": flip_in_state("exp_avg", (0, 1)),
    "the last bit of the second moment": flip_in_state("exp_avg_sq", (23, 23)),
    "the step count": increment_step_count,
    "the learning rate of the second group": halve_learning_rate,
    "the step count that is no tensor": increment_plain_step_count,
    "the last bit of a learning rate that is a tensor": lambda _, optimizer: flip_last_bit(
        optimizer.param_groups[0]["lr"], ()
    ),
    WEIGHT_DECAY: double_weight_decay,
    WEIGHT_OR_MOMENTUM: flip_weight_or_momentum,
}
