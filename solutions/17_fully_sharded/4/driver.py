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

from ddp_course.grader.harness.tensors import largest_gap, random_tensor

WIDTH, HIDDEN, STEPS = 65, (35, 61, 47, 37), 3
SIZES = [hidden * (2 * WIDTH + 1) for hidden in HIDDEN]  # of the blocks: they divide by neither 2 nor 3
SGD = functools.partial(torch.optim.SGD, lr=1.0, momentum=0.9)
SPARE = 12_288  # bytes for activations; the smallest block has three times as many
LOOKS = 200  # how often the memory is looked at before it counts as too much


def shard_bytes(frozen, world):
    """(Bytes of a rank's shard of each block, and of the gradient of each block)"""
    weights = [8 * math.ceil(size / world) for size in SIZES]
    return weights, [size * (number != frozen) for number, size in enumerate(weights)]


def drive(build, frozen, micro_batches):
    """The memory while the answer trains, how far its weights are from those of one process, and how many elements its
    optimizer got.

    frozen: the number of a block, or None. micro_batches: how many a step has.
    """
    rank, world, probe = dist.get_rank(), dist.get_world_size(), Probe()
    torch.manual_seed(1)
    layers = ([nn.Linear(WIDTH, size), nn.Tanh(), nn.Linear(size, WIDTH, bias=False), nn.Tanh()] for size in HIDDEN)
    right = [nn.Sequential(*block).double().requires_grad_(number != frozen) for number, block in enumerate(layers)]
    optimizer, blocks = SGD([p for block in right for p in block.parameters() if p.requires_grad]), copy.deepcopy(right)
    for number, block in enumerate(blocks):
        block[2].register_forward_hook(functools.partial(probe.block_computes, number))
        probe.storages.update(parameter.untyped_storage() for parameter in block.parameters())
    sizes = []  # of the tensors that the optimizer gets

    def make_optimizer(tensors):
        made = SGD(tensors)
        sizes.extend(tensor.numel() for group in made.param_groups for tensor in group["params"])
        return made

    with probe:
        model = build(blocks, make_optimizer)
    del blocks, block
    probe.weights, probe.gradients = shard_bytes(frozen, world)
    for step in range(STEPS):
        probe.right = [block[2].weight.detach().clone() for block in right]
        batch = random_tensor(step, micro_batches, world, WIDTH)
        for number, micro_batch in enumerate(batch):
            limit = sum(probe.weights) + (bool(step) + bool(number)) * sum(probe.gradients)  # momentum, gradients
            probe.at_rest = probe.note(f"before micro-batch {number} of step {step}", 0, limit)
            with probe:
                ((model(micro_batch[rank : rank + 1]) - 1).square().mean() / micro_batches).backward()
        with probe:
            model.step()
        (nn.Sequential(*right)(batch.flatten(0, 1)) - 1).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"memory": probe.memory, "gaps": probe.gaps, "elements": sum(sizes)}


class Probe(TorchDispatchMode):
    """While active, collects every storage that an operation makes, also one that only autograd refers to.

    weights, gradients  bytes of this rank's shard of each block, and of its gradient
    right               the weights of one process, by block
    at_rest             bytes alive before the micro-batch
    memory              [when, bytes, the largest number allowed] of each look
    gaps                [block, its largest difference to `right`]
    """

    def __init__(self):
        super().__init__()
        self.storages, self.memory, self.gaps, self.looks = weakref.WeakSet(), [], [], LOOKS

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        made = result if isinstance(result, (list, tuple)) else [result]
        self.storages.update(tensor.untyped_storage() for tensor in made if torch.is_tensor(tensor))
        return result

    def note(self, when, base, limit):
        """Note how many bytes are alive beyond `base`, and that `limit` are allowed. Returns the bytes."""
        for _ in range(self.looks):  # gloo's threads free their tensors a little later
            size = sum(storage.nbytes() for storage in self.storages) - base
            if size <= limit + SPARE:
                break
            time.sleep(0.005)
        else:
            self.looks = 1  # the answer fails: later looks need not wait
        self.memory.append([when, size, limit + SPARE])
        return size

    def block_computes(self, number, layer, inputs, output=None):
        """Note memory and weights while block `number` computes. A forward hook; in backward without `output`."""
        limit = 8 * SIZES[number] + sum(self.gradients[number + 1 :])  # in backward later blocks have their gradient
        self.note(f"in {'backward' if output is None else 'forward'} of block {number}", self.at_rest, limit)
        if output is not None:
            self.gaps.append([number, largest_gap(layer.weight, self.right[number])])
            if output.requires_grad:  # again in backward, before a gradient of weights is made
                output.register_hook(lambda gradient: self.block_computes(number, layer, inputs))
