"""Measure a rung: train one process on the global batch and several on their shares, and compare the weights.

`train` is the training loop of every rung. `train_reference` runs it in one process, `train_replicas` in several
processes; `compare` does both. The `run` of a Rung is a function of (setting, world) that returns a Comparison.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from ddp_course.distributed.process_group import World
from ddp_course.distributed.sync import sum_over_ranks
from ddp_course.ladder.faults import FAULTS
from ddp_course.ladder.models import build
from ddp_course.ladder.setting import Batch, Setting, global_batch, share, target_count

Weights = dict[str, Tensor]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Input = TypeVar("Input")
EQUAL, BOUNDED, DIFFERENT = "equal", "bounded", "different"


@dataclass
class Comparison:
    """The weights of several processes and of one, before the first step and after each. All `facts` must be true."""

    replicas: list[Weights | None]  # None: this rank took no part in the step
    reference: list[Weights]
    facts: dict[str, bool] = field(default_factory=dict)
    note: str = ""

    def distance(self) -> float:
        """The largest change of a weight of the reference by training: the scale of a mistake's effect."""
        return largest_gap(self.reference[0], self.reference[-1])


@dataclass(frozen=True)
class Tolerance:
    """A bound for the gap between the weights of several processes and of one, and its derivation."""

    bound: Callable[[Setting, Comparison], float]
    because: str


@dataclass(frozen=True)
class Rung:
    """A technique, its expected result, and the tolerance."""

    name: str
    topic: str
    run: Callable[[Setting, World], Comparison]
    tolerance: Tolerance
    expected: str = EQUAL
    because: str = ""  # why it is DIFFERENT
    differs_from: int = 2  # the smallest world size at which a DIFFERENT rung differs
    fits: Callable[[Setting, int], Setting] = lambda setting, ranks: setting  # makes sizes divide over the ranks


def mistake(name: str, fault: str, rung: Rung, because: str = "", differs_from: int = 2) -> Rung:
    """A known bug as a rung: `rung` with the `fault` injected, which must differ from one process.

    because: why it differs, if not for the reason in FAULTS.
    """

    def run(setting: Setting, world: World) -> Comparison:
        return rung.run(replace(setting, fault=fault), world)

    because = because or FAULTS[fault]
    return replace(rung, name=name, run=run, because=because, expected=DIFFERENT, differs_from=differs_from)


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The ladder's optimizer: its steps are proportional to the gradient and show a wrong factor; AdamW hides it."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of the rungs about optimizer state."""
    return torch.optim.AdamW(parameters, lr=1e-3)


def batches(setting: Setting) -> list[Batch]:
    """The global batch of every step."""
    return [global_batch(setting, step) for step in range(setting.steps)]


def compare(
    setting: Setting,
    world: World,
    replica: nn.Module,
    reference: nn.Module | None = None,
    *,
    global_batches: list[Batch] | None = None,
    make_optimizer: MakeOptimizer = sgd,
    make_reference_optimizer: MakeOptimizer | None = None,
    clip: float | None = None,
    **options,
) -> Comparison:
    """Train a replica per rank and one process's model on the same global batches.

    reference, global_batches: by default the setting's. make_reference_optimizer: by default the replicas'.
    options: further arguments of `train_replicas`.
    """
    global_batches = global_batches or batches(setting)
    reference = reference or build(setting)
    make_reference_optimizer = make_reference_optimizer or make_optimizer
    replicas = train_replicas(setting, world, replica, global_batches, make_optimizer, clip, **options)
    return Comparison(replicas, train_reference(reference, global_batches, make_reference_optimizer, clip))


def weights(model: nn.Module) -> Weights:
    """A float64 copy of the unsharded parameters, under their names in the unwrapped model (collective if sharded)."""
    copy = {}
    for name, parameter in model.named_parameters():
        full = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        unwrapped_name = name.replace("_orig_mod.", "").replace("module.", "")
        copy[unwrapped_name] = full.detach().to(torch.float64, copy=True)
    return copy


def train(
    module: nn.Module,
    step_inputs: Iterable[Input],
    gradients: Callable[[Input], None],
    make_optimizer: MakeOptimizer = sgd,
    read: Callable[[nn.Module], Weights] = weights,
) -> list[Weights]:
    """Take an optimizer step per element of `step_inputs`; returns the weights before the first step and after each.

    step_inputs: global batches, or numbers of steps. gradients: computes the gradients of a step from its input.
    read: returns a copy of the module's weights.
    """
    optimizer = make_optimizer([parameter for parameter in module.parameters() if parameter.requires_grad])
    history = [read(module)]
    for step_input in step_inputs:
        optimizer.zero_grad()
        gradients(step_input)
        optimizer.step()
        history.append(read(module))
    return history


def train_reference(
    model: nn.Module, global_batches: Iterable[Batch], make_optimizer: MakeOptimizer = sgd, clip: float | None = None
) -> list[Weights]:
    """Train `model` in one process on global batches; returns its weights as `train` does."""

    def gradients(batch: Batch) -> None:
        (model(*batch) / target_count(batch)).backward()
        if clip:
            clip_grad_norm_(model.parameters(), clip)

    return train(model, global_batches, gradients, make_optimizer)


def train_replicas(
    setting: Setting,
    world: World,
    replica: nn.Module,
    global_batches: Iterable[Batch],
    make_optimizer: MakeOptimizer = sgd,
    clip: float | None = None,
    accumulate: int = 1,
    read: Callable[[nn.Module], Weights] = weights,
) -> list[Weights]:
    """Train a replica per rank on its share of each global batch, in `accumulate` micro-batches, as `train` does."""

    def gradients(batch: Batch) -> None:
        [global_target_count] = sum_over_ranks(world, target_count(share(batch, world.rank, world.size)))
        compute_gradients(setting, world, replica, batch, global_target_count, accumulate)
        if clip:
            clip_grad_norm_(replica.parameters(), clip)

    return train(replica, global_batches, gradients, make_optimizer, read)


def compute_gradients(
    setting: Setting, world: World, replica: nn.Module, batch: Batch, global_target_count: float, accumulate: int = 1
) -> None:
    """Compute the gradients of a step from this rank's share of a global batch, with the setting's fault."""
    own_share = share(batch, 0 if setting.fault == "same_share" else world.rank, world.size)
    for part in range(accumulate):
        inputs, targets = share(own_share, part, accumulate)
        skips_sync = part < accumulate - 1 or setting.fault == "no_all_reduce"
        # The course's fully sharded model has no `no_sync`: every backward pass reduces its gradients.
        has_no_sync = hasattr(replica, "no_sync")
        with replica.no_sync() if skips_sync and has_no_sync else contextlib.nullcontext():
            # The wrappers average over ranks, but the loss is the mean over all targets of the global batch.
            factor = world.size / global_target_count * (world.size if setting.fault == "sum_for_mean" else 1)
            (summed_loss(replica, inputs, targets) * factor).backward()
    # A by-hand wrapper waits for its gradients here; torch's DDP has waited within backward.
    if setting.fault != "no_all_reduce" and hasattr(replica, "finish_gradient_synchronization"):
        replica.finish_gradient_synchronization()


def summed_loss(replica: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The summed loss. A rank without windows computes 0 from dummy tokens, so that it joins the collectives."""
    if len(inputs):
        return replica(inputs, targets)
    dummy = inputs.new_zeros(1, inputs.shape[1])
    return 0 * replica(dummy, dummy)


def largest_gap(a: Weights, b: Weights) -> float:
    """The largest difference between weights of the same name. Infinite if it is NaN, or if the names differ."""
    if a.keys() != b.keys():
        return float("inf")
    gap = torch.stack([(a[name] - b[name]).abs().max() for name in a]).max().item()  # Tensor.max keeps NaN
    return float("inf") if math.isnan(gap) else gap


def measure(rung: Rung, setting: Setting, world: World) -> dict:
    """Run the rung and return its record (collective). gaps: the largest over weights and ranks, per step."""
    start = time.perf_counter()
    setting = rung.fits(setting, world.size)
    comparison = rung.run(setting, world)
    pairs = zip(comparison.replicas, comparison.reference, strict=True)
    own_gaps = [0.0 if replica is None else largest_gap(replica, reference) for replica, reference in pairs]
    gaps = torch.tensor(own_gaps, dtype=torch.float64)
    dist.all_reduce(gaps, dist.ReduceOp.MAX)
    facts = dict(zip(comparison.facts, _true_on_all_ranks(world, comparison.facts.values()), strict=True))
    tolerance = rung.tolerance.bound(setting, comparison)
    expected = EQUAL if rung.expected == DIFFERENT and world.size < rung.differs_from else rung.expected
    holds = gaps.max().item() <= tolerance and all(facts.values())
    return {
        "rung": rung.name,
        "topic": rung.topic,
        "world_size": world.size,
        "expected": expected,
        "gaps": gaps.tolist(),
        "gap": gaps.max().item(),
        "final_gap": gaps[-1].item(),
        "tolerance": tolerance,
        "holds": holds,
        "as_expected": holds == (expected != DIFFERENT),
        "facts": facts,
        "because": rung.because or rung.tolerance.because,
        "note": comparison.note,
        "seconds": round(time.perf_counter() - start, 3),
    }


def _true_on_all_ranks(world: World, values: Iterable[bool]) -> list[bool]:
    """For each value, whether it is true on every rank (collective)."""
    untrue = [float(not value) for value in values]
    return [count == 0 for count in sum_over_ranks(world, *untrue)] if untrue else []
