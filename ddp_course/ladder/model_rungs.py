"""Rungs about the model: branches, norms, dropout, activation checkpointing, the compiler."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course.distributed.process_group import World, seed_rank, seed_shared
from ddp_course.ladder.comparison import DIFFERENT, Comparison, Rung, batches, compare, train, train_replicas
from ddp_course.ladder.models import Branches, build
from ddp_course.ladder.setting import DROPOUT, Batch, Setting, global_batch, share, target_count
from ddp_course.ladder.tolerance import REORDERED

# Dynamo traces the forward pass and splits the graph at DDP's buckets for every backend; "eager" runs the graphs as
# they are. Building kernels would need a C++ compiler, and does not concern DDP.
BACKEND = "eager"


def unused(setting: Setting, world: World) -> Comparison:
    """Each share of the batch uses one of two branches, the other one in the next step, and never the third."""
    replica, model = DDP(branches(setting), find_unused_parameters=True), branches(setting)

    def mean_loss(module: nn.Module, step: int, rank: int) -> Tensor:
        batch = global_batch(setting, step)
        return module(*share(batch, rank, world.size), (rank + step) % 2) / target_count(batch)

    def gradients(step: int) -> None:
        (mean_loss(replica, step, world.rank) * world.size).backward()  # DDP averages over the ranks

    def reference_gradients(step: int) -> None:
        for rank in range(world.size):
            mean_loss(model, step, rank).backward()

    steps = range(setting.steps)
    replicas, reference = train(replica, steps, gradients), train(model, steps, reference_gradients)
    third_unused = all(module.branches[2].expand.weight.grad is None for module in (model, replica.module))
    return Comparison(replicas, reference, {"the third branch has no gradient": third_unused})


def branches(setting: Setting) -> nn.Module:
    """Branches in float64, with equal weights on every rank."""
    seed_shared(setting.seed)
    return Branches(setting).double()


def batch_norm(setting: Setting, world: World) -> Comparison:
    """Each rank normalises by the mean and variance of its own share, which differ from the global batch's."""
    comparison = compare(setting, world, DDP(build(setting, norm="batch")), build(setting, norm="batch"))
    synchronised = nn.SyncBatchNorm.convert_sync_batchnorm(build(setting, norm="batch"))
    try:
        synchronised(*share(batches(setting)[0], world.rank, world.size))
    except (ValueError, RuntimeError) as error:
        comparison.note = f"SyncBatchNorm on a CPU: {error}"
    return comparison


def group_norm(setting: Setting, world: World) -> Comparison:
    """A norm that needs no communication, because it normalises each token by itself."""
    return compare(setting, world, DDP(build(setting, norm="group")), build(setting, norm="group"))


def dropout(setting: Setting, world: World) -> Comparison:
    """Masks differ between ranks. The reference draws each share's masks from the generator state of its rank."""
    global_batches = batches(setting)
    replica, model = DDP(build(setting, dropout=DROPOUT)), build(setting, dropout=DROPOUT)
    generator_states, masks_by_rank = [], []
    for rank in range(world.size):
        seed_rank(setting.seed, rank)
        generator_states.append(torch.get_rng_state())
        masks_by_rank.append(F.dropout(torch.ones(64), DROPOUT))
    seed_rank(setting.seed, world.rank)
    replicas = train_replicas(setting, world, replica, global_batches)

    def reference_gradients(batch: Batch) -> None:
        for rank in range(world.size):
            torch.set_rng_state(generator_states[rank])
            (model(*share(batch, rank, world.size)) / target_count(batch)).backward()
            generator_states[rank] = torch.get_rng_state()

    reference = train(model, global_batches, reference_gradients)
    masks_differ = not any(torch.equal(masks_by_rank[0], masks) for masks in masks_by_rank[1:])
    return Comparison(replicas, reference, facts={"masks differ by rank": masks_differ})


def checkpointing(setting: Setting, world: World) -> Comparison:
    """Activations are discarded and recomputed in backward; the reference keeps them."""
    return compare(setting, world, DDP(build(setting, activation_checkpointing=True)))


def compiled_inside(setting: Setting, world: World) -> Comparison:
    """DDP(torch.compile(model)): the module inside the wrapper is compiled."""
    return compiled(setting, world, lambda model: DDP(torch.compile(model, backend=BACKEND)))


def compiled_outside(setting: Setting, world: World) -> Comparison:
    """DDP(model).compile(): the wrapper and its module are compiled."""

    def compile_in_place(model: nn.Module) -> nn.Module:
        replica = DDP(model)
        replica.compile(backend=BACKEND)  # keeps the names of the parameters, and no_sync
        return replica

    return compiled(setting, world, compile_in_place)


def compiled(setting: Setting, world: World, wrap: Callable[[nn.Module], nn.Module]) -> Comparison:
    """Compare a replica that `wrap` has compiled with a reference that is not compiled."""
    torch.compiler.reset()
    try:
        return compare(setting, world, wrap(build(setting)))
    finally:
        torch.compiler.reset()  # its cache would keep the wrapper alive


STATISTICS = (
    "the tolerance is that of rungs that have to be equal; BatchNorm is not a sum over the batch: each rank uses the "
    "mean and variance of its own share, so N ranks train a different function than one process does"
)
RUNGS = [
    Rung("unused parameters", "the model", unused, REORDERED),
    Rung("BatchNorm", "the model", batch_norm, REORDERED, DIFFERENT, STATISTICS),
    Rung("GroupNorm", "the model", group_norm, REORDERED),
    Rung("dropout", "the model", dropout, REORDERED),
    Rung("activation checkpointing", "the model", checkpointing, REORDERED),
    Rung("DDP of a compiled model", "the model", compiled_inside, REORDERED),
    Rung("compiled DDP", "the model", compiled_outside, REORDERED),
]
