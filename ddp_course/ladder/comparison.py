"""How a rung is measured: one process on the global batch, several on their shares, and the gap between their weights.

`alone` is the reference and knows nothing of ranks. `together` is what a training loop on several processes does.
A rung is a function of (setting, world) that returns a Comparison of the two; `rung` puts it on the ladder.
"""

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from ddp_course.distributed.process_group import World
from ddp_course.distributed.sync import sum_over_ranks
from ddp_course.ladder.setting import Batch, Fault, Setting, global_batch, share, target_count

Weights = dict[str, Tensor]
EQUAL, BOUNDED, DIFFERENT = "equal", "bounded", "different"


@dataclass
class Comparison:
    """Weights before the first update and after each, of several processes and of one; `facts` must hold besides."""

    several: list[Weights | None]  # None: this rank had no part in the update
    one: list[Weights]
    facts: dict[str, bool] = field(default_factory=dict)
    note: str = ""

    def travelled(self) -> float:
        """How far the one process moved any of its weights: the scale of what a mistake would do."""
        return largest_gap(self.one[0], self.one[-1])


@dataclass(frozen=True)
class Rung:
    """A technique, what is expected of it, and the tolerance with the argument for it."""

    name: str
    topic: str
    run: Callable[[Setting, World], Comparison]
    tolerance: Callable[[Setting, Comparison], float]
    because: str
    expected: str = EQUAL
    differs_from: int = 2  # ranks, if it is DIFFERENT: with one rank most have nothing that could differ
    fits: Callable[[Setting, int], Setting] = lambda setting, ranks: setting  # sizes that can be cut over the ranks


def mistake(name: str, fault: Fault, rung: Rung, because: str, differs_from: int = 2) -> Rung:
    """A known bug as a rung: `rung` with `fault` made in it, which must not equal one process."""

    def run(setting: Setting, world: World) -> Comparison:
        return rung.run(replace(setting, fault=fault), world)

    return replace(rung, name=name, run=run, because=because, expected=DIFFERENT, differs_from=differs_from)


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The ladder's optimizer: its steps are proportional to the gradient, so a wrong factor shows. AdamW hides one."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """For the rungs about optimizer state."""
    return torch.optim.AdamW(parameters, lr=1e-3)


def batches(setting: Setting) -> list[Batch]:
    """The global batch of every update."""
    return [global_batch(setting, update) for update in range(setting.steps)]


def alone(model: nn.Module, joint: Iterable[Batch], optimizer=sgd, clip: float | None = None) -> list[Weights]:
    """One process trains `model` on whole global batches; returns its weights before and after each update."""
    optimizer, history = optimizer(p for p in model.parameters() if p.requires_grad), [weights(model)]
    for inputs, targets in joint:
        optimizer.zero_grad()
        (model(inputs, targets) / target_count((inputs, targets))).backward()
        if clip:
            clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        history.append(weights(model))
    return history


def together(
    setting: Setting,
    world: World,
    replica: nn.Module,
    joint: Iterable[Batch],
    optimizer=sgd,
    clip: float | None = None,
    accumulate: int = 1,
    read: Callable[[nn.Module], Weights] | None = None,
) -> list[Weights]:
    """Each rank trains its replica on its share of each global batch, in `accumulate` parts; returns as `alone`.

    read: how to copy the weights out of the replica, if `weights` cannot.
    """
    read = read or weights
    optimizer, history = optimizer(p for p in replica.parameters() if p.requires_grad), [read(replica)]
    for batch in joint:
        [tokens] = sum_over_ranks(world, target_count(share(batch, world.rank, world.size)))
        one_update(setting, world, replica, optimizer, batch, tokens, clip, accumulate)
        history.append(read(replica))
    return history


def one_update(
    setting: Setting,
    world: World,
    replica: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    tokens: float,
    clip: float | None = None,
    accumulate: int = 1,
) -> None:
    """One optimizer step on this rank's share of a global batch of `tokens` targets. Here the faults are made."""
    mine = share(batch, 0 if setting.fault == "same_share" else world.rank, world.size)
    for part in range(accumulate):
        inputs, targets = share(mine, part, accumulate)
        silent = part < accumulate - 1 or setting.fault == "no_all_reduce"
        # The fully sharded model by hand has no no_sync: its gradients travel in every backward pass.
        with getattr(replica, "no_sync", contextlib.nullcontext)() if silent else contextlib.nullcontext():
            # The wrappers average over the ranks; what is wanted is the mean over all tokens of the update.
            factor = world.size / tokens * (world.size if setting.fault == "sum_for_mean" else 1)
            (loss_of_share(replica, inputs, targets) * factor).backward()
    if setting.fault != "no_all_reduce":
        finish(replica)
    if clip:
        clip_grad_norm_(replica.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()


def loss_of_share(replica: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The summed loss. A rank with nothing to do computes on a stand-in times zero: it must not stay away."""
    if len(inputs):
        return replica(inputs, targets)
    stand_in = inputs.new_zeros(1, inputs.shape[1])
    return 0 * replica(stand_in, stand_in)


def finish(replica: nn.Module) -> None:
    """Wait for the gradients, where a wrapper wants to be asked; torch's DDP has waited by the end of backward."""
    if hasattr(replica, "finish_gradient_synchronization"):
        replica.finish_gradient_synchronization()


def ddp(module: nn.Module, **options) -> DistributedDataParallel:
    """torch's own wrapper."""
    return DistributedDataParallel(module, **options)


def weights(model: nn.Module) -> Weights:
    """A copy of the parameters in float64, under the names they have without a wrapper."""
    copy = {}
    for name, parameter in model.named_parameters():
        full = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        bare = name.replace("_orig_mod.", "").removeprefix("module.").replace("module.", "")
        copy[bare] = full.detach().to(torch.float64, copy=True)
    return copy


def largest_gap(a: Weights, b: Weights) -> float:
    """The largest distance between two weights of one name. Infinite if it is no number, or the names differ."""
    if a.keys() != b.keys():
        return float("inf")
    gap = torch.stack([(a[name] - b[name]).abs().max() for name in a]).max().item()  # keeps a NaN, as max() would not
    return gap if gap == gap else float("inf")


def measure(rung: Rung, setting: Setting, world: World) -> dict:
    """Run the rung (collective) and return its record; a gap is the largest over all weights and all ranks."""
    start, setting = time.perf_counter(), rung.fits(setting, world.size)
    comparison = rung.run(setting, world)
    if len(comparison.several) != len(comparison.one):
        raise RuntimeError(f"{rung.name}: {len(comparison.several)} updates against {len(comparison.one)}")
    pairs = zip(comparison.several, comparison.one, strict=True)
    own = [0.0 if several is None else largest_gap(several, one) for several, one in pairs]
    gaps = torch.tensor(own, dtype=torch.float64)
    dist.all_reduce(gaps, dist.ReduceOp.MAX)
    facts = dict(zip(comparison.facts, _everywhere(world, comparison.facts.values()), strict=True))
    tolerance, expected = rung.tolerance(setting, comparison), rung.expected
    if expected == DIFFERENT and world.size < rung.differs_from:
        expected = EQUAL
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
        "because": rung.because,
        "note": comparison.note,
        "seconds": round(time.perf_counter() - start, 3),
    }


def _everywhere(world: World, values: Iterable[bool]) -> list[bool]:
    """Whether each is true on every rank."""
    values = [float(not value) for value in values]
    return [untrue == 0 for untrue in sum_over_ranks(world, *values)] if values else []
