"""Inside a rank, for 03.3: train with the learner's class, and note what it says to the other ranks, and when."""

import copy
import hashlib
import sys
import threading
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn

from ddp_course.grader.harness.record import Recorder, in_new_threads

LAYERS, WIDTH = 8, 64  # of the wide model: 16,384 bytes of gradient a layer
TWO_LAYERS = 2.5 * WIDTH * WIDTH * 4 / 2**20  # MiB: a bucket of the wide model
UPDATES = (1, 3, 2, 1)  # micro-batches of each update of the small model
LARGE = 2**22  # elements of the large parameter beside a small one: 16 MiB
LONGEST_WAIT = 2.0  # seconds that rank 1 waits for a sign of rank 0
PAUSE = 0.01  # seconds a layer of backward takes at least, where a thread may want its turn
SAMPLES = 4  # in a micro-batch of one rank


class ReadyMade(Exception):
    """The class asked for by hand is built on torch's own."""


def refuse(self, *args, **kwargs):
    raise ReadyMade


nn.parallel.DistributedDataParallel.__init__ = refuse


def drive(build, what, *arguments):
    """Every rank: `build` is the learner's class, `what` the name of one of the functions below."""
    try:
        return globals()[what](build, *arguments)
    except ReadyMade:
        return {"ready_made": "DistributedDataParallel"}


class Events(list):
    """The events of a rank, in order: collectives (dicts, see record.py) and marks of our own."""

    def __init__(self):
        super().__init__()
        self.answer = sys.modules["answer"].__file__
        in_new_threads(self.append, self.answer)

    def recorded(self):
        return Recorder(self.append, self.answer)


# ---- is it one training? ------------------------------------------------------------------------------------------


class Small(nn.Module):
    """float64, with a tied weight, a frozen one, a bias and three buffers; other values on every rank."""

    def __init__(self, seed):
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.frozen = nn.Linear(4, 4)
        self.trained = nn.Linear(4, 4)
        self.output = nn.Linear(4, 6, bias=False)
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("shift", torch.ones(4), persistent=False)
        self.double()
        self.output.weight = self.embedding.weight
        self.frozen.requires_grad_(False)
        values = torch.Generator().manual_seed(seed)
        for tensor in [*self.parameters(), *self.buffers()]:
            tensor.data.uniform_(-1, 1, generator=values)
        self.register_buffer("count", torch.randint(1000, (4,), generator=values))

    def forward(self, tokens):
        hidden = torch.tanh(self.frozen(self.embedding(tokens))) * self.scale + self.shift
        return self.output(torch.tanh(self.trained(hidden)))


def train(build, bucket=350):
    """Four updates, compared with one process on the global batch; the gaps at the start and after each, and the
    messages of the last. All gradients together are 352 bytes, so that buckets of 350 bytes are two."""
    rank, world = dist.get_rank(), dist.get_world_size()
    one_process, events = Small(seed=0), Events()
    wrapped = build(Small(seed=rank), bucket / 2**20)
    result = {"start": _gaps(wrapped.module, one_process), "updates": [], "in_no_sync": 0}
    data = torch.Generator().manual_seed(7)
    for micro_batches in UPDATES:
        for model in (wrapped.module, one_process):
            model.zero_grad()
        for number in range(micro_batches):
            batch = torch.randint(6, (world, SAMPLES, 2), generator=data)
            last = number == micro_batches - 1
            events.clear()
            with events.recorded(), nullcontext() if last else wrapped.no_sync():
                (_loss(wrapped, batch[rank]) / micro_batches).backward()
            result["in_no_sync"] += 0 if last else len(_collectives(events))
            (_loss(one_process, batch.flatten(0, 1)) / micro_batches).backward()
        with events.recorded():
            wrapped.finish_gradient_synchronization()
        result["messages"] = _messages(events)
        gradients = _gradient_gaps(wrapped.module, one_process)
        for model in (wrapped.module, one_process):
            _step(model)
        with torch.no_grad():
            wrapped(batch[rank][:, 0])  # as an evaluation would
        update = {"micro_batches": micro_batches, "gradients": gradients, "weights": _gaps(wrapped.module, one_process)}
        result["updates"].append(update | {"bits": _bits(wrapped.module)})
    largest = max(parameter.nbytes for parameter in one_process.parameters() if parameter.requires_grad)
    return result | {"bucket": max(bucket, largest)}


@torch.no_grad()
def _step(model):
    """Plain SGD. torch.optim would load torch._dynamo on each rank."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter -= 0.3 * parameter.grad


def _loss(model, batch):
    return nn.functional.cross_entropy(model(batch[:, 0]), batch[:, 1])


def _gaps(model, other):
    """Largest difference by name of parameter or buffer."""
    right = dict(_tensors(other))
    return {name: (value - right[name]).abs().max().item() for name, value in _tensors(model)}


def _tensors(model):
    return [*model.named_parameters(), *model.named_buffers()]


def _gradient_gaps(model, other):
    """By name: (largest difference, how many times the right gradient it is at best), or None for no gradient."""
    right, gaps = dict(other.named_parameters()), {}
    for name, parameter in model.named_parameters():
        gradient, expected = parameter.grad, right[name].grad
        if not parameter.requires_grad:
            continue
        gaps[name] = None
        if gradient is not None:
            times = (gradient * expected).sum() / (expected * expected).sum()
            gaps[name] = [(gradient - expected).abs().max().item(), times.item()]
    return gaps


def _bits(model):
    data = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return hashlib.sha256(data).hexdigest()[:16]


# ---- what does it say, and when? ----------------------------------------------------------------------------------


class Wide(nn.Module):
    """Eight layers of one size. `reached(layer)` is called in backward just before the layer's gradient is made."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
        self.reached = lambda layer: None
        values = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            parameter.data.normal_(0, WIDTH**-0.5, generator=values)

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = layer(x)
            x.register_hook(lambda gradient, number=number: self.reached(number))
        return x.square().sum()


def budget(build):
    """Three updates of three micro-batches; what was sent in the last."""
    events = Events()
    wrapped = build(Wide(), TWO_LAYERS)
    for _ in range(3):
        events.clear()
        wrapped.module.zero_grad()
        for last in (False, False, True):
            with events.recorded(), nullcontext() if last else wrapped.no_sync():
                wrapped(_inputs(dist.get_rank())).backward()
        with events.recorded():
            wrapped.finish_gradient_synchronization()
    return {"sent": _messages(events)}


def overlap(build):
    """The second update, behind a micro-batch under no_sync; and the third, in which rank 1 makes no gradient until it
    hears that rank 0 has gone on after its first collective. Who waits for the other ranks in backward never gets that
    far, and rank 1 gives up."""
    rank, world, events = dist.get_rank(), dist.get_world_size(), Events()
    store = dist.distributed_c10d._get_default_store()
    model = Wide()
    wrapped = build(model, TWO_LAYERS)
    gave_up, orders = threading.Event(), []

    def go_on():
        store.set("rank 0 has gone on", "")

    def mark(layer):
        events.append({"layer": layer})
        time.sleep(PAUSE)

    def mark_and_meet(layer):
        if rank == 0 and _collectives(events):
            go_on()
        if rank == 1 and layer == LAYERS - 1 and not _heard(store):
            gave_up.set()
        mark(layer)

    unmarked = model.reached
    for reached in (unmarked, mark, mark_and_meet):
        model.reached = unmarked
        model.zero_grad()
        if reached is mark:
            with wrapped.no_sync():
                wrapped(_inputs(rank)).backward()
        model.reached = reached
        events.clear()
        with events.recorded():
            wrapped(_inputs(rank)).backward()
            if rank == 0 and reached is mark_and_meet:
                go_on()
            events.append({"layer": -1})
            wrapped.finish_gradient_synchronization()
        marks = [event for event in events if event.keys() & {"layer", "op"}]
        orders.append([mark["layer"] if "layer" in mark else mark["op"] for mark in marks])
    gradients = {name: parameter.grad.clone() for name, parameter in wrapped.module.named_parameters()}
    one_process = copy.deepcopy(model)
    one_process.zero_grad()
    for other in range(world):
        (one_process(_inputs(other)) / world).backward()
    right = {name: parameter.grad for name, parameter in one_process.named_parameters()}
    gap = max(((gradients[name] - right[name]).norm() / right[name].norm()).item() for name in right)
    off = {f"while rank 1 is late, the gradients on rank {rank} are": gap}
    return {"orders": orders[1:], "gave_up": gave_up.is_set(), "off": off}


class Unequal(nn.Module):
    """In backward the gradient of `large` is made first and that of `small` just after; each element is the input."""

    def __init__(self):
        super().__init__()
        self.small = nn.Parameter(torch.ones(1))
        self.large = nn.Parameter(torch.full((LARGE,), 1 / LARGE))

    def forward(self, x):
        return (self.large * (self.small * x)).sum()


def large_and_small(build):
    """Updates with two messages, where the large one is under way when the small one leaves, and when it is there.
    off: how far the gradients are from the mean, relative to it."""
    rank, world = dist.get_rank(), dist.get_world_size()
    wrapped, right, off = build(Unequal(), 1.0), (world + 1) / 2, {}
    for _ in range(3):
        wrapped.module.zero_grad()
        wrapped(torch.tensor(rank + 1.0)).backward()
        wrapped.finish_gradient_synchronization()
        for name, parameter in wrapped.module.named_parameters():
            which = f"the gradient of {name} on rank {rank} is"
            off[which] = max(off.get(which, 0.0), (parameter.grad / right - 1).abs().max().item())
    return {"off": off}


def _inputs(rank):
    return torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(100 + rank))


def _heard(store):
    deadline = time.monotonic() + LONGEST_WAIT
    while not store.check(["rank 0 has gone on"]):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _collectives(events):
    return [event for event in events if "op" in event]


def _messages(events):
    return [[message["op"], message["bytes"], message["line"]] for message in _collectives(events)]
