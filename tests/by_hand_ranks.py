"""A rank that compares the by-hand wrappers, optimizer and sharded layers with one process on the global batch.

It prints its observations as lines of JSON, for the assertions of test_by_hand.py.
"""

import contextlib
import copy
import functools
import itertools
import json
import os
import sys

import torch
import torch.distributed as dist
from tensor_bytes import TensorBytes
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ddp_course.distributed import process_group
from ddp_course.distributed.by_hand import (
    BucketedDataParallel,
    FlatDataParallel,
    FullyShardedLayer,
    OverlappedDataParallel,
    ShardedOptimizer,
    full_state_dict,
    fully_shard_by_hand,
    newton_schulz_flops,
    sharded_muon,
)
from ddp_course.distributed.replica_check import assert_replicas_equal
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig

WRAPPERS = {
    "flat": FlatDataParallel,
    "overlapped": OverlappedDataParallel,
    "bucketed": BucketedDataParallel,
    "small buckets": lambda module: BucketedDataParallel(module, 0.002),
}
ACCUMULATED = ["no_sync", "every backward", "two forwards first"]
MICRO_BATCHES, STEPS = 3, 3
SMALL = MiniGPTConfig(vocab_size=64, context=16, layers=2, heads=2, width=32)


def report(**observations):
    print(json.dumps(observations), flush=True)


# ---- steps, against one process ----------------------------------------------------------------------------------


class Awkward(nn.Module):
    """Hard cases for a wrapper: parameters out of order, tied, frozen, of two types, used sometimes or never."""

    def __init__(self, dtype):
        super().__init__()
        self.never = nn.Linear(3, 3)  # used on no rank
        self.output = nn.Linear(8, 16, bias=False)
        self.embedding = nn.Embedding(16, 8)
        self.output.weight = self.embedding.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.first = nn.Linear(8, 8)
        self.other = nn.Linear(8, 8, dtype=dtype)
        self.branch = nn.Linear(8, 8)  # used in some micro-batches of some ranks
        self.last = nn.Linear(8, 8)
        self.register_buffer("scale", torch.rand(8))
        self.register_buffer("calls", torch.tensor(torch.initial_seed() % 7))
        self.register_buffer("mask", torch.rand(4) > 0.5)
        self.register_buffer("turned", torch.rand(3, 5).t())
        self.also_never = nn.Parameter(torch.rand(2))

    def forward(self, tokens, use_branch):
        x = self.frozen(self.embedding(tokens) * self.scale)
        x = self.other(torch.tanh(self.first(x)).to(self.other.weight.dtype)).to(x.dtype)
        if use_branch:
            x = x + self.branch(x)
        return nn.functional.cross_entropy(self.output(torch.tanh(self.last(x))).flatten(0, 1), tokens.flatten())


def build(seed, dtype=torch.float64):
    torch.manual_seed(seed)
    return Awkward(dtype)


def micro_batch(step, micro, rank, world):
    """A rank's tokens, and whether it uses the branch: rank 0 does in the first, the last rank in the second."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
    return torch.randint(16, (2, 5), generator=generator), (micro, rank) in ((0, 0), (1, world.size - 1))


def sgd(module):
    return torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1, momentum=0.9, weight_decay=0.1)


@functools.cache
def one_process(dtype, world):
    """[(gradients, weights)] of each step of one process on the global batch."""
    model, steps = build(0, dtype), []
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(MICRO_BATCHES):
            losses = [model(*micro_batch(step, micro, rank, world)) for rank in range(world.size)]
            (sum(losses) / world.size / MICRO_BATCHES).backward()
        gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        optimizer.step()
        steps.append((gradients, [p.detach().clone() for p in model.parameters()]))
    return steps


def gap(ours, theirs):
    """The largest difference of two gradients or weights; infinite if only one of them is None."""
    if ours is None or theirs is None:
        return 0.0 if ours is theirs else float("inf")
    return (ours - theirs).abs().max().item()


def largest_gap(make, how, world):
    """The largest gap between a gradient or weight of a wrapped replica and that of one process, over all steps."""
    dtype = torch.float32 if how == "two types" else torch.float64
    expected = one_process(dtype, world)
    replica = make(build(world.rank, dtype))
    optimizer, largest = sgd(replica), 0.0
    for step in range(STEPS):
        optimizer.zero_grad()
        batches = [micro_batch(step, micro, world.rank, world) for micro in range(MICRO_BATCHES)]
        if how == "two forwards first":
            for loss in [replica(*batch) / MICRO_BATCHES for batch in batches]:
                loss.backward()
        else:
            for micro, batch in enumerate(batches):
                quiet = how in ("no_sync", "two types") and micro < MICRO_BATCHES - 1
                with replica.no_sync() if quiet else contextlib.nullcontext():
                    (replica(*batch) / MICRO_BATCHES).backward()
                    if quiet:
                        replica.finish_gradient_synchronization()  # does nothing under no_sync
        replica.finish_gradient_synchronization()
        gradients, weights = expected[step]
        for parameter, gradient in zip(replica.parameters(), gradients, strict=True):
            largest = max(largest, gap(parameter.grad, gradient))
        optimizer.step()
        for parameter, weight in zip(replica.parameters(), weights, strict=True):
            largest = max(largest, gap(parameter.detach(), weight))
    assert_replicas_equal(world, replica.module, buffers=True)
    return largest


def report_steps(world):
    torch.set_default_dtype(torch.float64)
    for name, make in WRAPPERS.items():
        replica = make(build(seed=world.rank))
        assert_replicas_equal(world, replica.module, buffers=True)
        first = build(0).state_dict()
        same = [torch.equal(tensor, first[n]) for n, tensor in replica.module.state_dict().items()]
        report(**{f"{name} starts as rank 0": all(same)})
        for how in [*ACCUMULATED, "two types"]:
            report(**{f"{name}, {how}": largest_gap(make, how, world)})


def report_gradients(world):
    """The gradient after a backward pass under no_sync; after its synchronization; where only rank 0's loss uses the
    parameter; and after one backward pass that is sent and one under no_sync.
    """
    for name, make in WRAPPERS.items():
        replica = make(nn.Linear(1, 1, bias=False))
        weight, gradients = replica.module.weight, []
        with replica.no_sync():
            (replica(torch.ones(1)) * (world.rank + 1)).sum().backward()
            gradients.append(weight.grad.item())
        replica.finish_gradient_synchronization()
        gradients.append(weight.grad.item())
        weight.grad = None
        unrelated = torch.ones(1, requires_grad=True).sum()
        loss = (replica(torch.ones(1)) * world.size).sum() if world.rank == 0 else unrelated
        loss.backward()
        replica.finish_gradient_synchronization()
        gradients.append(weight.grad.item())
        weight.grad = None
        (replica(torch.ones(1)) * (world.rank + 1)).sum().backward()
        with replica.no_sync():
            (replica(torch.ones(1)) * (world.rank + 1)).sum().backward()
        replica.finish_gradient_synchronization()
        gradients.append(weight.grad.item())
        report(**{f"{name} special": gradients})


# ---- messages ----------------------------------------------------------------------------------------------------


class HeadFirst(nn.Module):
    """Layers registered in the reverse order of their use, and one that is never used."""

    def __init__(self):
        super().__init__()
        self.c, self.b, self.a = (nn.Linear(4, 4) for _ in range(3))
        self.never = nn.Linear(4, 4)

    def forward(self, x, _):
        return self.c(self.b(self.a(x))).sum()


def report_messages():
    """The messages of a backward pass: how many, how large, and how many are sent before it has ended."""
    all_reduce, events = dist.all_reduce, []

    def recorded(tensor, *args, **kwargs):
        events.append(("sent", tensor.nbytes))
        return all_reduce(tensor, *args, **kwargs)

    dist.all_reduce = recorded
    torch.set_default_dtype(torch.float32)
    for model_name, new_model, inputs in (
        ("MiniGPT", lambda: MiniGPT(SMALL), (torch.zeros(2, 8, dtype=torch.long),) * 2),
        ("HeadFirst", HeadFirst, (torch.ones(1, 4), None)),
    ):
        for name, make in WRAPPERS.items():
            replica, steps = new_model(), []
            for parameter in replica.parameters():
                parameter.register_post_accumulate_grad_hook(lambda _: events.append(("ready", 0)))
            numels = [p.numel() for p in replica.parameters()]
            replica = make(replica)
            for _ in range(2):
                events.clear()
                replica(*inputs).backward()
                replica.finish_gradient_synchronization()
                sent = [i for i, (kind, _) in enumerate(events) if kind == "sent"]
                ready = [i for i, (kind, _) in enumerate(events) if kind == "ready"]
                steps.append(
                    {
                        "messages": len(sent),
                        "sizes": [n for _, n in events if n],
                        "early": sum(i < ready[-1] for i in sent),
                        "before any": sum(i < ready[0] for i in sent),
                    }
                )
            events.clear()
            with replica.no_sync():
                replica(*inputs).backward()
            quiet = sum(kind == "sent" for kind, _ in events)
            report(**{f"{model_name}, {name}": {"steps": steps, "numels": numels, "quiet": quiet}})
    dist.all_reduce = all_reduce


def report_ddp_gradients(world):
    """The largest gap to a gradient of torch's DDP, with one and two micro-batches per step."""
    for (name, make), count in itertools.product(WRAPPERS.items(), (1, 2)):
        torch.manual_seed(1)
        model = MiniGPT(SMALL)
        theirs = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=25)
        ours = make(model)
        pairs = [(ours, torch.optim.AdamW(ours.parameters())), (theirs, torch.optim.AdamW(theirs.parameters()))]
        worst = 0.0
        for step in range(3):
            for micro in range(count):  # each backward is sent; synchronization is finished after the last alone
                generator = torch.Generator().manual_seed(100 * step + 10 * micro + world.rank)
                tokens = torch.randint(64, (2, 9), generator=generator)
                for replica, _ in pairs:
                    replica(tokens[:, :-1], tokens[:, 1:]).backward()
            ours.finish_gradient_synchronization()
            for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
                worst = max(worst, ((a.grad - b.grad).abs().max() / b.grad.abs().max()).item())
            for _, optimizer in pairs:
                optimizer.step()
                optimizer.zero_grad()
        report(**{f"{name} to DDP, {count}": worst})


# ---- sharded optimizers ------------------------------------------------------------------------------------------


def state_elements(optimizer):
    return sum(t.numel() for state in optimizer.state.values() for t in state.values() if t.dim())


def compare_optimizers(kind, options):
    """ZeRO-1, against the optimizer that is not sharded."""
    makers = (lambda groups: kind(groups, **options), lambda groups: ShardedOptimizer(groups, kind, **options))
    models, optimizers, schedulers, equal = [], [], [], True
    for make in makers:
        torch.manual_seed(2)
        models.append(MiniGPT(SMALL))
        parameters = list(models[-1].blocks.parameters())
        matrices, vectors = ([p for p in parameters if (p.dim() >= 2) == wanted] for wanted in (True, False))
        optimizers.append(make([{"params": matrices, "weight_decay": 0.1}, {"params": vectors}]))
        schedulers.append(torch.optim.lr_scheduler.StepLR(optimizers[-1], 2, 0.5))
    for step in range(5):
        tokens = torch.randint(64, (2, 9), generator=torch.Generator().manual_seed(step))
        for model, optimizer, scheduler in zip(models, optimizers, schedulers, strict=True):
            if step == 2:
                rest = [*model.token_embedding.parameters(), *model.final_norm.parameters()]
                optimizer.add_param_group({"params": rest, "lr": 3e-3})
                scheduler.base_lrs.append(3e-3)

            def closure(model=model, optimizer=optimizer, tokens=tokens):
                optimizer.zero_grad()
                loss = model(tokens[:, :-1], tokens[:, 1:])
                loss.backward()
                return loss

            loss = optimizer.step(closure)
            scheduler.step()
        equal &= all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))
        if step == 3:  # as in a resumed run: this rank's share is saved and loaded
            optimizers[1].load_state_dict(copy.deepcopy(optimizers[1].state_dict()))
    whole, share = map(state_elements, optimizers)
    optimizers[1].load_state_dict(optimizers[0].state_dict())  # a whole state: the rank keeps its part
    group = optimizers[1].param_groups[0]
    return {
        "equal": equal,
        "loss": loss.item(),
        "whole": whole,
        "share": share,
        "kept": state_elements(optimizers[1]),
        "largest": max(p.numel() for p in models[0].parameters()),
        "lr": group["lr"],
        "options": sorted(group),
    }


def report_optimizers():
    report(AdamW=compare_optimizers(torch.optim.AdamW, {"lr": 1e-3}))
    report(SGD=compare_optimizers(torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9}))
    few = ShardedOptimizer([nn.Parameter(torch.ones(2))], torch.optim.AdamW)  # fewer tensors than ranks
    few.param_groups[0]["params"][0].grad = torch.ones(2)
    few.step()
    report(few=few.param_groups[0]["params"][0].tolist(), few_loads=few.load)


def report_muon(world):
    """Sharded Muon gives each rank whole matrices, balanced by operations. Notebook 17b asserts its steps."""
    matrices = [nn.Parameter(torch.randn(shape)) for shape in [(256, 16)] * 4 + [(64, 64), (48, 16)]]

    def operations(optimizer):
        """The operations on each rank's matrices."""
        numbers = [0] * world.size
        for matrix, owner in optimizer.owner.items():
            numbers[owner] += newton_schulz_flops(matrix)
        return numbers

    muon, by_elements = sharded_muon(matrices, lr=0.02), ShardedOptimizer(matrices, torch.optim.Muon)
    report(muon_loads=muon.load, muon=operations(muon), muon_by_elements=operations(by_elements))


# ---- fully sharded -----------------------------------------------------------------------------------------------


def report_fully_sharded(world):
    """Against one process, in float64 and with accumulation."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(3 if world.rank == 0 else 4)
    sharded = fully_shard_by_hand(model := MiniGPT(SMALL), model.blocks)
    torch.manual_seed(3)
    whole = MiniGPT(SMALL)
    optimizers = torch.optim.AdamW(whole.parameters()), torch.optim.AdamW(sharded.parameters())
    worst = 0.0
    for step in range(3):
        for _ in range(2):
            tokens = torch.randint(64, (2 * world.size, 9), generator=torch.Generator().manual_seed(step))
            own = tokens[2 * world.rank :][:2]
            whole(tokens[:, :-1], tokens[:, 1:]).div(world.size).backward()
            sharded(own[:, :-1], own[:, 1:]).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        weights = full_state_dict(sharded)
        worst = max(worst, max((weights[n] - t).abs().max().item() for n, t in whole.state_dict().items()))
    report(sharded_gap=worst, sharded_names=set(weights) == set(whole.state_dict()))
    tokens = torch.zeros(1, 8, dtype=torch.long)
    whole.eval(), sharded.eval()
    with torch.no_grad():
        report(logits_gap=(whole(tokens) - sharded(tokens)).abs().max().item())


def report_half_precision(world):
    """Weights that are sent in bfloat16, against torch's fully_shard."""
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(1)
    model = MiniGPT(MiniGPTConfig(64, 16, 2, 2, 16))
    theirs = copy.deepcopy(model)
    ours = fully_shard_by_hand(model, model.blocks, torch.bfloat16)
    # reduce_dtype: without it torch reduces in float32 from 2.15 on
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    mesh = init_device_mesh("cpu", (world.size,))
    for part in (*theirs.blocks, theirs):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    losses = {"ours": [], "theirs": []}
    for name, sharded in (("ours", ours), ("theirs", theirs)):
        optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1, momentum=0.9)
        for step in range(4):
            tokens = torch.randint(64, (2, 17), generator=torch.Generator().manual_seed(10 * step + world.rank))
            loss = sharded(tokens[:, :-1], tokens[:, 1:]) / 32
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[name].append(loss.item())
    full = full_state_dict(ours)
    gaps = [(full[name] - tensor.full_tensor()).abs().max().item() for name, tensor in theirs.state_dict().items()]
    output = FullyShardedLayer(nn.Linear(4, 4), torch.bfloat16)(torch.ones(1, 4))  # a float32 input is cast
    report(half_losses=losses, half_gaps=gaps)
    report(half_types=sorted({str(p.dtype) for p in ours.parameters()}), half_output=str(output.dtype))


def peak_bytes(wrap):
    """The most bytes of tensors that existed at once in two steps, in units of the weights of the whole model."""
    with TensorBytes() as memory:
        module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
        weights = memory.now
        module = wrap(module)
        memory.peak = memory.now
        optimizer = torch.optim.AdamW(module.parameters(), foreach=False)
        for _ in range(2):
            module(torch.ones(1, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return memory.peak / weights


def each_layer(module):
    return nn.Sequential(*(FullyShardedLayer(layer) for layer in module))


def report_memory():
    report(peak_whole=peak_bytes(lambda module: module), peak_sharded=peak_bytes(each_layer))


# ---- errors ------------------------------------------------------------------------------------------------------


def message(act):
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def report_interruption():
    """An interrupted backward pass leaves gathered weights behind; the next pass must gather the new ones."""
    layer, x = FullyShardedLayer(nn.Linear(4, 4, bias=False)), torch.ones(1, 4, requires_grad=True)
    hook = x.register_hook(lambda _: 1 / 0)
    interruption = message(lambda: layer(x).sum().backward())
    hook.remove()
    with torch.no_grad():
        layer.shard.fill_(3.0)
    layer(x).sum().backward()
    report(interruption=interruption, gradient_after_it=x.grad.tolist())


def shared_by_two_segments():
    replica = OverlappedDataParallel(nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)]))
    twice, last = replica.module
    x = checkpoint(twice, torch.ones(1, requires_grad=True), use_reentrant=True)
    last(checkpoint(twice, x, use_reentrant=True)).sum().backward()


def report_bad_input(world):
    torch.set_default_dtype(torch.float64)
    report(bad_bucket=message(lambda: BucketedDataParallel(nn.Linear(1, 1), 0)))
    report(bad_types=message(lambda: FullyShardedLayer(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).float()))))
    report(bad_frozen=message(lambda: FullyShardedLayer(nn.Linear(1, 1).requires_grad_(False))))
    tied = nn.Sequential(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]))
    tied[0][1].weight = tied[0][0].weight
    report(bad_tie=message(lambda: fully_shard_by_hand(tied, tied[0])))
    different = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2 + (world.rank == world.size - 1)))
    report(bad_model=message(lambda: FlatDataParallel(different)))
    sparse = FlatDataParallel(nn.Embedding(4, 2, sparse=True))
    sparse(torch.zeros(1, dtype=torch.long)).sum().backward()
    report(bad_checkpoint=message(shared_by_two_segments))
    report(bad_sparse=message(sparse.finish_gradient_synchronization))


def main():
    world = process_group.start(timeout_seconds=600)
    report_steps(world)
    report_gradients(world)
    report_messages()
    report_ddp_gradients(world)
    report_optimizers()
    report_muon(world)
    if world.size == 2:
        report_half_precision(world)
    report_fully_sharded(world)
    report_memory()
    report_interruption()
    report_bad_input(world)
    sys.stdout.flush()
    os._exit(0)  # DDP's replicas still hold the group


if __name__ == "__main__":
    main()
