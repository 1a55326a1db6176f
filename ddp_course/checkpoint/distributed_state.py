"""A training state whose tensors are written by all ranks, and which resumes bit-exactly like `TrainingState`.

Step, identity, settings and random states are small: they are written into a plain checkpoint. The tensors are written
before it, to another folder, by torch.distributed.checkpoint: so each plain checkpoint has its tensors.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from ddp_course.checkpoint import distributed_checkpoint
from ddp_course.checkpoint.checkpoint import TENSORS
from ddp_course.checkpoint.run_files import CHECKPOINTS
from ddp_course.checkpoint.training_state import TrainingState, assert_finite_weights, keep_settings
from ddp_course.distributed.process_group import World
from ddp_course.distributed.sync import from_rank_0


@dataclass(frozen=True)
class DistributedState:
    """Saves and restores like `TrainingState`: `model` with its buffers, `optimizer`, and what identifies the run."""

    model: nn.Module
    optimizer: Optimizer
    identity: Mapping[str, object]

    def save(self, world: World, run_dir: Path, step: int, config: Mapping[str, object], keep: int) -> None:
        """Save after `step` optimizer steps (collective). All ranks write; rank 0 deletes old ones beyond `keep`."""
        assert_finite_weights(world, {"model": self.model.state_dict()}, step)
        tensors = distributed_checkpoint.save(run_dir / TENSORS, step, self.model, self.optimizer)
        companion = tensors / distributed_checkpoint.CHECKSUMS
        TrainingState({}, self.identity).save(world, run_dir, step, config, keep, companion)
        from_rank_0(world, lambda: _drop_tensors_without_checkpoint(run_dir))

    def restore(self, world: World, path: Path) -> int:
        """Put back what `save` wrote as `path`, at any number of ranks; returns the step. Raises InputError."""
        step = TrainingState({}, self.identity).restore(world, path)
        with keep_settings(self.optimizer):
            distributed_checkpoint.load(path.absolute().parent.parent / TENSORS / path.name, self.model, self.optimizer)
        return step


def _drop_tensors_without_checkpoint(run_dir: Path) -> None:
    """Delete the tensors of plain checkpoints that `checkpoint.save` has deleted."""
    for tensors in (run_dir / TENSORS).glob("step_*"):
        if not (run_dir / CHECKPOINTS / tensors.name).exists():
            shutil.rmtree(tensors)
