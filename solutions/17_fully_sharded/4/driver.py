"""Inside a rank, for 17.4: the bytes that are alive where a block computes, and the weights it computes with."""

import copy
import functools
import math
import time
import weakref

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

WIDTH, HIDDEN, STEPS = 65, (35, 61, 47, 37), 3
SIZES = [hidden * (2 * WIDTH + 1) for hidden in HIDDEN]  # of the blocks: they divide by neither 2 nor 3
SGD = functools.partial(torch.optim.SGD, lr=1.0, momentum=0.9)
SPARE = 12_288  # bytes for activations; the smallest block has three times as many


def parts(frozen, world):
    """Bytes of a rank's part of each block, and of its gradient."""
    weights = [8 * math.ceil(size / world) for size in SIZES]
    return weights, [part * (number != frozen) for number, part in enumerate(weights)]


def drive(build, frozen, pieces):
    """Train, and the same in one process. frozen: a block or None; pieces: micro-batches of a step."""
    rank, world, probe = dist.get_rank(), dist.get_world_size(), Probe()
    torch.manual_seed(1)
    layers = ([nn.Linear(WIDTH, size), nn.Tanh(), nn.Linear(size, WIDTH, bias=False), nn.Tanh()] for size in HIDDEN)
    right = [nn.Sequential(*own).double().requires_grad_(number != frozen) for number, own in enumerate(layers)]
    optimizer, blocks = SGD([p for block in right for p in block.parameters() if p.requires_grad]), copy.deepcopy(right)
    for number, block in enumerate(blocks):
        block[2].register_forward_hook(functools.partial(probe.reached, number))
        probe.storages.update(parameter.untyped_storage() for parameter in block.parameters())
    with probe:
        model = build(blocks, SGD)
    del blocks, block
    probe.weights, probe.gradients = parts(frozen, world)
    for step in range(STEPS):
        probe.right = [block[2].weight.detach().clone() for block in right]
        batch = torch.randn(pieces, world, WIDTH, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        for number, piece in enumerate(batch):
            limit = sum(probe.weights) + (bool(step) + bool(number)) * sum(probe.gradients)  # momentum, gradients
            probe.at_rest = probe.note(f"before micro-batch {number} of step {step}", 0, limit)
            with probe:
                ((model(piece[rank : rank + 1]) - 1).square().mean() / pieces).backward()
        with probe:
            model.step()
        (nn.Sequential(*right)(batch.flatten(0, 1)) - 1).square().mean().backward()
        optimizer.step(), optimizer.zero_grad()
    return {"memory": probe.memory, "gaps": probe.gaps}


class Probe(TorchDispatchMode):
    """While active, knows every storage that an operation makes, whoever holds it: autograd does, too."""

    def __init__(self):
        super().__init__()
        self.storages, self.memory, self.gaps, self.looks = weakref.WeakSet(), [], [], 200

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        made = result if isinstance(result, (list, tuple)) else [result]
        self.storages.update(tensor.untyped_storage() for tensor in made if torch.is_tensor(tensor))
        return result

    def note(self, when, base, limit):
        for _ in range(self.looks):  # gloo's threads let go a little late
            size = sum(storage.nbytes() for storage in self.storages) - base
            if size <= limit + SPARE:
                break
            time.sleep(0.005)
        else:
            self.looks = 1
        self.memory.append([when, size, limit + SPARE])
        return size

    def reached(self, number, layer, inputs, output=None):
        limit = 8 * SIZES[number] + sum(self.gradients[number + 1 :])  # of later blocks the gradient is there
        self.note(f"in {'backward' if output is None else 'forward'} of block {number}", self.at_rest, limit)
        if output is not None:
            self.gaps.append([number, (layer.weight.detach() - self.right[number]).abs().max().item()])
            if output.requires_grad:  # again in backward, before a gradient of weights is made
                output.register_hook(lambda gradient: self.reached(number, layer, inputs))
