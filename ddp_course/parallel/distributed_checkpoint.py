"""Checkpoints that all ranks write together, each its share, and that any number of ranks can read.

torch.distributed.checkpoint does the work: every tensor lies in the files once, under its name in the model, with an
index of which file holds which part. A sharded model (FSDP) is read back into other shards, a replicated one (DDP)
into any number of replicas. What this module adds is what a crash needs: the folder appears under its final name only
when it is whole. There is no checksum and no random state: for a bit-exact resume see `training_state`.
"""

import os
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer

from ddp_course.errors import InputError

INDEX = ".metadata"  # torch writes it last


def save(folder: Path, step: int, model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup | None = None):
    """Write `folder`/step_NNNNNN together and return its path when it is whole (collective over `group`).

    A kill leaves the earlier checkpoints and a hidden folder, which the next save of the same step removes.
    """
    temporary, final = _begin(folder, step, group)
    dcp.save(_state(step, model, optimizer), checkpoint_id=temporary, process_group=group)
    return _finish(temporary, final, group)


def save_in_background(
    folder: Path, step: int, model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup
) -> tuple[Future, Callable[[], Path]]:
    """Copy the state, let a thread write the copy, return at once: (the write, what makes it final).

    The thread's messages travel through `group`, which must be gloo and used for nothing else meanwhile: they would
    meet those of the training. Call the second value on every rank of the group, at the same step, before the next
    save: it waits for the write, gives the folder its name and returns its path.
    """
    temporary, final = _begin(folder, step, group)
    written = dcp.async_save(_state(step, model, optimizer), checkpoint_id=temporary, process_group=group)

    def finish() -> Path:
        written.result()
        return _finish(temporary, final, group)

    return written, finish


def load(path: Path, model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup | None = None) -> int:
    """Read a checkpoint into `model` and `optimizer`, as many ranks as there are now; returns its step.

    Without a process group it reads alone. Raises InputError if `path` is not a whole checkpoint of this kind.
    """
    if not (path / INDEX).is_file():
        raise InputError(f"{path} is no distributed checkpoint: it has no file {INDEX}, which is written last")
    state = _state(0, model, optimizer)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # alone is what was asked for
        dcp.load(state, checkpoint_id=path, process_group=group, no_dist=not dist.is_initialized())
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return state["step"]


def newest(folder: Path) -> Path | None:
    """The whole checkpoint with the highest step; None if there is none."""
    whole = [path for path in folder.glob("step_*") if path.name[5:].isdigit() and (path / INDEX).is_file()]
    return max(whole, key=lambda path: int(path.name[5:]), default=None)


def _state(step: int, model: nn.Module, optimizer: Optimizer) -> dict:
    """Under the names of the bare model, whatever wraps it."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"step": step, "model": model_state, "optimizer": optimizer_state}


def _begin(folder: Path, step: int, group: dist.ProcessGroup | None) -> tuple[Path, Path]:
    temporary, final = folder / f".step_{step:06d}.tmp", folder / f"step_{step:06d}"
    if dist.get_rank(group) == 0:
        shutil.rmtree(temporary, ignore_errors=True)  # of a save that was killed
        temporary.mkdir(parents=True)
    dist.barrier(group)  # nobody writes into a folder that is about to be removed
    return temporary, final


def _finish(temporary: Path, final: Path, group: dist.ProcessGroup | None) -> Path:
    if dist.get_rank(group) == 0:
        shutil.rmtree(final, ignore_errors=True)
        os.rename(temporary, final)
    dist.barrier(group)  # whoever returns finds it there
    return final
