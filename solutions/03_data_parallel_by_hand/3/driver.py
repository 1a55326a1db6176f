"""Inside a rank, for 03.3: train with the learner's class, and record its collectives and when they start."""

import os
import sys
import time
from contextlib import nullcontext, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from ddp_course.grader.harness.record import Recorder, in_new_threads
from ddp_course.grader.harness.tensors import fingerprint, largest_gap, model_gaps, random_tensor
from ddp_course.launcher.fair_clock import FairClock

LAYERS, WIDTH = 8, 64  # of the wide model
LAYER_BYTES = WIDTH * WIDTH * 4  # of the gradient of one of its layers
BUCKET = 2.5 * LAYER_BYTES  # bytes of a bucket for the wide model: room for two layers
STEPS = (1, 3, 2, 1)  # micro-batches of each step of the small model
LARGE = 2**22  # elements of Unequal.large: 16 MiB
CONTINUED = "rank 0 has continued"  # a key of the store
LONGEST_WAIT = 2.0  # seconds on a clock of all ranks that rank 1 waits until rank 0 has continued
LOOK_INTERVAL = 0.25  # seconds between two looks at that clock
PAUSE = 0.01  # seconds that backward pauses at each layer, so that a thread of the answer can run
LONGEST_PAUSE = 0.5  # seconds on that clock that it pauses at the last one if no message has started yet
END = -1  # in an order of layers and collectives: backward has ended
SAMPLES = 4  # in a micro-batch of one rank


class SkippedBatch(Exception):
    """An exception that a training raises and catches in order to go on with the next step."""


class BuiltTorchDDP(Exception):
    """The answer has built torch's DistributedDataParallel."""


def refuse(self, *args, **kwargs):
    raise BuiltTorchDDP


def drive(build, function, *arguments):
    """The result of the function of this file called `function`; `build` is the learner's class.

    From the first call on, torch's DistributedDataParallel cannot be built in this process.
    """
    nn.parallel.DistributedDataParallel.__init__ = refuse
    try:
        return globals()[function](build, *arguments)
    except BuiltTorchDDP:
        return {"built_torch_ddp": True}


class Events(list):
    """The events of a rank, in order: its collectives, as record.py notes them, and the numbers of layers."""

    def __init__(self):
        super().__init__()
        self.answer = sys.modules["answer"].__file__
        in_new_threads(self.append, self.answer)

    def recorded(self):
        """A context in which this thread's collectives become events."""
        return Recorder(self.append, self.answer)

    def collectives(self):
        return [event for event in self if isinstance(event, dict)]

    def messages(self):
        """[operation, bytes, line of the answer] of each collective."""
        return [[message["op"], message["bytes"], message["line"]] for message in self.collectives()]

    def order(self):
        """The names of the collectives and the numbers of the layers."""
        return [event["op"] if isinstance(event, dict) else event for event in self]


# ---- does it train as one process would? --------------------------------------------------------------------------


class Small(nn.Module):
    """float64, with a tied weight, a frozen layer, biases and three buffers; the values depend on `seed`."""

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
        generator = torch.Generator().manual_seed(seed)
        for tensor in [*self.parameters(), *self.buffers()]:
            tensor.data.uniform_(-1, 1, generator=generator)
        self.register_buffer("count", torch.randint(1000, (4,), generator=generator))

    def forward(self, tokens):
        hidden = torch.tanh(self.frozen(self.embedding(tokens))) * self.scale + self.shift
        return self.output(torch.tanh(self.trained(hidden)))


def train(build, bucket=350):
    """Four steps, compared with one process on the global batch; before the last an exception leaves no_sync.

    Returns the gaps at the start and after each step, and the messages of the last. `bucket`: bytes. All gradients
    together are 352 bytes, so that buckets of 350 bytes are two.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    one_process, events = Small(seed=0), Events()
    wrapped = build(Small(seed=rank), bucket / 2**20)
    result = {"start": model_gaps(wrapped.module, one_process), "steps": [], "in_no_sync": 0}
    generator = torch.Generator().manual_seed(7)
    for number, micro_batches in enumerate(STEPS, 1):
        if number == len(STEPS):
            with suppress(SkippedBatch), wrapped.no_sync():
                raise SkippedBatch
        for model in (wrapped.module, one_process):
            model.zero_grad()
        for micro_batch in range(micro_batches):
            batch = torch.randint(6, (world, SAMPLES, 2), generator=generator)
            last = micro_batch == micro_batches - 1
            events.clear()
            with events.recorded(), nullcontext() if last else wrapped.no_sync():
                (_loss(wrapped, batch[rank]) / micro_batches).backward()
            result["in_no_sync"] += 0 if last else len(events.collectives())
            (_loss(one_process, batch.flatten(0, 1)) / micro_batches).backward()
        with events.recorded():
            wrapped.finish_gradient_synchronization()
        result["messages"] = events.messages()
        gradients = _gradient_gaps(wrapped.module, one_process)
        for model in (wrapped.module, one_process):
            _step(model)
        with torch.no_grad():
            wrapped(batch[rank][:, 0])  # as an evaluation would
        step = {
            "number": number,
            "micro_batches": micro_batches,
            "gradients": gradients,
            "weights": model_gaps(wrapped.module, one_process),
        }
        result["steps"].append(step | {"bits": fingerprint(wrapped.module.parameters())})
    largest = max(parameter.nbytes for parameter in one_process.parameters() if parameter.requires_grad)
    return result | {"bucket": max(bucket, largest)}


@torch.no_grad()
def _step(model):
    """A step of plain SGD. torch.optim would load torch._dynamo on each rank."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter -= 0.3 * parameter.grad


def _loss(model, batch):
    return nn.functional.cross_entropy(model(batch[:, 0]), batch[:, 1])


def _gradient_gaps(model, other):
    """{name of a trainable parameter: what _gradient_gap returns}"""
    return {
        name: _gradient_gap(parameter.grad, other.get_parameter(name).grad)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def _gradient_gap(gradient, right):
    """[largest difference, factor], where factor * right fits the gradient best; None if there is no gradient."""
    if gradient is None:
        return None
    return [largest_gap(gradient, right), ((gradient * right).sum() / right.square().sum()).item()]


# ---- what does it send, and when? ---------------------------------------------------------------------------------


class Wide(nn.Module):
    """Eight layers of the same size. Backward calls `reached(layer)` just before it computes the layer's gradient."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
        self.reached = lambda layer: None
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            parameter.data.normal_(0, WIDTH**-0.5, generator=generator)

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = layer(x)
            x.register_hook(lambda gradient, number=number: self.reached(number))
        return x.square().sum()


def budget(build):
    """The messages of the last of three steps with three micro-batches each."""
    events = Events()
    wrapped = build(Wide(), BUCKET / 2**20)
    for _ in range(3):
        events.clear()
        wrapped.module.zero_grad()
        for last in (False, False, True):
            with events.recorded(), nullcontext() if last else wrapped.no_sync():
                wrapped(_inputs(dist.get_rank())).backward()
        with events.recorded():
            wrapped.finish_gradient_synchronization()
    return {"messages": events.messages(), "bucket": BUCKET}


def overlap(build):
    """Three steps. Returns the order of layers and collectives in the last two, and errors of the last's gradients.

    Before the second there is a micro-batch under no_sync. In the third, rank 1 stops before its first gradient until
    rank 0 has continued with backward after its first collective. If rank 0 waits for that collective in backward, it
    does not continue, and rank 1 gives up.
    """
    rank, world, events = dist.get_rank(), dist.get_world_size(), Events()
    store = dist.distributed_c10d._get_default_store()
    model = Wide()
    wrapped = build(model, BUCKET / 2**20)
    gave_up = False

    def mark(layer):
        if layer == 0:  # the last one: by now a message has started, or a thread of the answer is about to start it
            clock = FairClock(LOOK_INTERVAL, parent=os.getppid())
            while not events.collectives() and clock.seconds < LONGEST_PAUSE:
                time.sleep(PAUSE)
                clock.update()
        events.append(layer)
        time.sleep(PAUSE)

    def mark_and_delay_rank_1(layer):
        nonlocal gave_up
        if rank == 0 and events.collectives():
            store.set(CONTINUED, "")
        if rank == 1 and layer == LAYERS - 1:
            gave_up = not _has_continued(store)
        mark(layer)

    def step(reached):
        """The order of layers and collectives in a step."""
        model.reached = reached
        events.clear()
        with events.recorded():
            wrapped(_inputs(rank)).backward()
            if rank == 0 and reached is mark_and_delay_rank_1:
                store.set(CONTINUED, "")
            events.append(END)
            wrapped.finish_gradient_synchronization()
        return events.order()

    step(reached=model.reached)
    model.zero_grad()
    with wrapped.no_sync():
        wrapped(_inputs(rank)).backward()
    orders = [step(mark)]
    model.zero_grad()
    orders.append(step(mark_and_delay_rank_1))
    # Clones: an operation that the answer does not wait for may still change the gradients.
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    one_process = Wide()
    for peer in range(world):
        (one_process(_inputs(peer)) / world).backward()
    right = {name: parameter.grad for name, parameter in one_process.named_parameters()}
    gap = max(((gradients[name] - right[name]).norm() / right[name].norm()).item() for name in right)
    return {"orders": orders, "gave_up": gave_up, "off": {"while rank 1 is late, the gradients": gap}}


def _has_continued(store):
    """Whether rank 0 has continued within LONGEST_WAIT. Waits of a rank for a core do not count."""
    clock = FairClock(LOOK_INTERVAL, parent=os.getppid())
    while clock.seconds < LONGEST_WAIT:
        try:
            store.wait([CONTINUED], timedelta(seconds=LOOK_INTERVAL))
            return True
        except dist.DistStoreError:
            clock.update()
    return False


class Unequal(nn.Module):
    """Backward computes the gradient of `large` first and that of `small` just after; each element is the input."""

    def __init__(self):
        super().__init__()
        self.small = nn.Parameter(torch.ones(1))
        self.large = nn.Parameter(torch.full((LARGE,), 1 / LARGE))

    def forward(self, x):
        return (self.large * (self.small * x)).sum()


def large_and_small(build):
    """Three steps with a large message and then a small one, which arrives before it.

    off: {"the gradient of large": its largest relative error}, and the same for small
    """
    wrapped, right = build(Unequal(), 1.0), (dist.get_world_size() + 1) / 2
    off = {}
    for _ in range(3):
        wrapped.module.zero_grad()
        wrapped(torch.tensor(dist.get_rank() + 1.0)).backward()
        wrapped.finish_gradient_synchronization()
        for name, parameter in wrapped.module.named_parameters():
            key = f"the gradient of {name}"
            error = largest_gap(parameter.grad, torch.full_like(parameter, right)) / right
            off[key] = max(off.get(key, 0.0), error)
    return {"off": off}


def _inputs(rank):
    return random_tensor(100 + rank, 3, WIDTH, dtype=torch.float32)
