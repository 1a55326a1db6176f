"""Rungs about what happens inside the model: branches, norms, dropout, recomputation, the compiler."""

import torch
import torch.nn.functional as F
from torch import nn

from ddp_course.distributed.process_group import World, seed_rank, seed_shared
from ddp_course.ladder.comparison import DIFFERENT, Comparison, Rung, alone, batches, ddp, sgd, together, weights
from ddp_course.ladder.setting import Setting, share, target_count
from ddp_course.ladder.subjects import Branches, build
from ddp_course.ladder.tolerance import REORDERED, reordered

DROPOUT = 0.2


def unused(setting: Setting, world: World) -> Comparison:
    """A share of the batch takes one of two branches, another one in the next update; nobody takes the third."""
    replica, model = ddp(branches(setting), find_unused_parameters=True), branches(setting)
    optimizers = [sgd(replica.parameters()), sgd(model.parameters())]
    several, one = [weights(replica)], [weights(model)]
    for update, joint in enumerate(batches(setting)):
        tokens = target_count(joint)
        mine = replica(*share(joint, world.rank, world.size), (world.rank + update) % 2)
        (mine * world.size / tokens).backward()
        for rank in range(world.size):
            (model(*share(joint, rank, world.size), (rank + update) % 2) / tokens).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        several.append(weights(replica))
        one.append(weights(model))
    never = model.branches[2].expand.weight.grad is None and replica.module.branches[2].expand.weight.grad is None
    return Comparison(several, one, {"the third branch has no gradient": never})


def branches(setting: Setting) -> nn.Module:
    seed_shared(setting.seed)
    return Branches(setting).double()


def batch_norm(setting: Setting, world: World) -> Comparison:
    """Each rank normalises by the mean and spread of its own share: another function than on the global batch."""
    joint = batches(setting)
    several = together(setting, world, ddp(build(setting, norm="batch")), joint)
    refusal = ""
    try:
        nn.SyncBatchNorm.convert_sync_batchnorm(build(setting, norm="batch"))(*share(joint[0], world.rank, world.size))
    except (ValueError, RuntimeError) as error:
        refusal = f"SyncBatchNorm on a CPU: {error}"
    return Comparison(several, alone(build(setting, norm="batch"), joint), note=refusal)


def group_norm(setting: Setting, world: World) -> Comparison:
    """The cure that works everywhere: a norm that looks at one token at a time."""
    joint = batches(setting)
    several = together(setting, world, ddp(build(setting, norm="group")), joint)
    return Comparison(several, alone(build(setting, norm="group"), joint))


def dropout(setting: Setting, world: World) -> Comparison:
    """Masks differ by rank. The one process draws each share's masks from the generator of the rank that had it."""
    joint, replica, model = batches(setting), ddp(build(setting, dropout=DROPOUT)), build(setting, dropout=DROPOUT)
    masks_of = []
    for rank in range(world.size):
        seed_rank(setting.seed, rank)
        masks_of.append(F.dropout(torch.ones(64), DROPOUT))
    seed_rank(setting.seed, world.rank)
    several = together(setting, world, replica, joint)

    generators = []
    for rank in range(world.size):
        seed_rank(setting.seed, rank)
        generators.append(torch.get_rng_state())
    optimizer, one = sgd(model.parameters()), [weights(model)]
    for batch in joint:
        optimizer.zero_grad()
        for rank in range(world.size):
            torch.set_rng_state(generators[rank])
            (model(*share(batch, rank, world.size)) / target_count(batch)).backward()
            generators[rank] = torch.get_rng_state()
        optimizer.step()
        one.append(weights(model))
    unlike = not any(torch.equal(masks_of[0], masks) for masks in masks_of[1:])
    return Comparison(several, one, facts={"masks differ by rank": unlike})


def checkpointing(setting: Setting, world: World) -> Comparison:
    """Activations are thrown away and computed again in backward; the one process keeps them."""
    joint = batches(setting)
    replica = ddp(build(setting, activation_checkpointing=True))
    return Comparison(together(setting, world, replica, joint), alone(build(setting), joint))


def compiled_inside(setting: Setting, world: World) -> Comparison:
    """DDP(compile(model)): what the wrapper holds is compiled."""
    return compiled(setting, world, lambda model: ddp(torch.compile(model, backend=BACKEND)))


def compiled_outside(setting: Setting, world: World) -> Comparison:
    """compile(DDP(model)), in place: the wrapper is compiled with what it holds."""

    def compile_in_place(model: nn.Module) -> nn.Module:
        replica = ddp(model)
        replica.compile(backend=BACKEND)  # keeps the names of the parameters, and no_sync
        return replica

    return compiled(setting, world, compile_in_place)


# Dynamo traces the forward pass, and cuts it for DDP, as it does for every backend; the pieces then run as they are.
# To build kernels from them takes a C++ compiler and half a minute, and is none of DDP's business.
BACKEND = "eager"


def compiled(setting: Setting, world: World, wrap) -> Comparison:
    joint = batches(setting)
    torch.compiler.reset()
    try:
        several = together(setting, world, wrap(build(setting)), joint)
    finally:
        torch.compiler.reset()  # what it has cached holds on to the wrapper
    return Comparison(several, alone(build(setting), joint))


STATISTICS = (
    "the tolerance is that of the rungs that hold; BatchNorm is not a sum over the batch: each rank uses the mean and "
    "variance of its own share, so N ranks train another function than one process does"
)
RUNGS = [
    Rung("unused parameters", "the model", unused, reordered, REORDERED),
    Rung("BatchNorm", "the model", batch_norm, reordered, STATISTICS, expected=DIFFERENT),
    Rung("GroupNorm", "the model", group_norm, reordered, REORDERED),
    Rung("dropout", "the model", dropout, reordered, REORDERED),
    Rung("activation checkpointing", "the model", checkpointing, reordered, REORDERED),
    Rung("DDP of a compiled model", "the model", compiled_inside, reordered, REORDERED),
    Rung("compiled DDP", "the model", compiled_outside, reordered, REORDERED),
]
