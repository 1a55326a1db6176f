"""Checkpoints of which each rank writes its share, and that any number of ranks can read.

torch.distributed.checkpoint does the work: every tensor lies in the files once, under its name in the model, with an
index of which file holds which part. A sharded model (FSDP) is read back into other shards, a replicated one (DDP)
into any number of replicas. This module protects against a crash and a bad disk: the folder appears under its
final name only when it is whole, with the checksums of its files. There is no random state: for a bit-exact resume see
`training_state`.
"""

import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer

from ddp_course.base.atomic_file import flush_folder_to_disk, flush_to_disk
from ddp_course.base.errors import InputError, type_and_text
from ddp_course.checkpoint import checksums
from ddp_course.distributed.sync import gather_objects

INDEX = ".metadata"  # torch writes it last
CHECKSUMS = f"files{checksums.SUFFIX}"


def save(folder: Path, step: int, model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup | None = None):
    """Write `folder`/step_NNNNNN and return its path when it is whole (collective over `group`).

    A kill leaves the earlier checkpoints and a hidden folder, which the next save of the same step removes.
    """
    temporary, final = _begin(folder, step, group)
    with _as_input_error(f"cannot write checkpoint {final}"):
        dcp.save(_state(step, model, optimizer), checkpoint_id=temporary, process_group=group)
    return _finish(temporary, final, group)


def save_in_background(
    folder: Path, step: int, model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup
) -> tuple[Future, Callable[[], Path]]:
    """Copy the state, let a thread write the copy, and return at once: a future of the write, and `finish`.

    The thread communicates through `group`, which must be gloo and used for nothing else meanwhile: training's messages
    would mix with the thread's. Call `finish()` on every rank of the group, at the same step, before the next save:
    it waits for the write, gives the folder its final name and returns its path.
    """
    temporary, final = _begin(folder, step, group)
    future = dcp.async_save(_state(step, model, optimizer), checkpoint_id=temporary, process_group=group)

    def finish() -> Path:
        with _as_input_error(f"cannot write checkpoint {final}"):
            future.result()
        return _finish(temporary, final, group)

    return future, finish


def load(path: Path, model: nn.Module, optimizer: Optimizer, group: dist.ProcessGroup | None = None) -> int:
    """Read a checkpoint into `model` and `optimizer`, on any number of ranks; returns its step.

    Without a process group, one process reads all of it. Raises InputError, on every rank, if `path` is not a whole
    checkpoint of this kind, or is one of another model.
    """
    single_process = not dist.is_initialized()
    damage = [problem(path) if single_process or dist.get_rank(group) == 0 else None]
    if not single_process:
        dist.broadcast_object_list(damage, group=group, group_src=0)
    if damage[0]:
        raise InputError(f"{path} is no distributed checkpoint that can be loaded: {damage[0]}")
    state = _state(0, model, optimizer)
    with warnings.catch_warnings(), _as_input_error(f"cannot load {path}"):
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # one process is intended
        dcp.load(state, checkpoint_id=path, process_group=group, no_dist=single_process)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return state["step"]


def newest(folder: Path) -> Path | None:
    """The whole checkpoint with the highest step; None if there are none.

    Prints a line for each damaged one that is passed over. Raises InputError if there are some but none is whole.
    """
    return checksums.newest_whole(folder, problem)


def problem(path: Path) -> str | None:
    """Why a checkpoint cannot be used, in a few words; None if it is whole."""
    if not os.path.isfile(path / INDEX):
        return f"it has no file {INDEX}, which is written last"
    return checksums.problem(path / CHECKSUMS, INDEX)


@contextmanager
def _as_input_error(message: str) -> Iterator[None]:
    """Turn what torch's checkpoint functions raise into an InputError that begins with `message`.

    A CheckpointException is raised on every rank, with the errors of those that failed; the first is reported.
    """
    try:
        yield
    except CheckpointException as error:
        rank, (reason, _) = next(iter(error.failures.items()))
        raise InputError(f"{message}: rank {rank} says {type_and_text(reason)}") from None
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise InputError(f"{message}: {type_and_text(error)}") from error


def _state(step: int, model: nn.Module, optimizer: Optimizer) -> dict:
    """The state of model and optimizer under the parameters' names in the bare model, whatever wraps it."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"step": step, "model": model_state, "optimizer": optimizer_state}


def _begin(folder: Path, step: int, group: dist.ProcessGroup | None) -> tuple[Path, Path]:
    """Make the hidden folder to write into; returns it and the checkpoint's final path (collective)."""
    temporary, final = folder / f".step_{step:06d}.tmp", folder / f"step_{step:06d}"
    if dist.get_rank(group) == 0:
        shutil.rmtree(temporary, ignore_errors=True)  # of a save that was killed
        temporary.mkdir(parents=True)
    dist.barrier(group)  # no rank writes into a folder that is about to be removed
    return temporary, final


def _finish(temporary: Path, final: Path, group: dist.ProcessGroup | None) -> Path:
    """Add the list of checksums and rename the folder; returns its final path (collective).

    Each rank computes the checksums of its own files, which are still in the page cache. Rank 0 does the rest.
    """
    rank = dist.get_rank(group)
    own_checksums = {path.name: checksums.of_file(path) for path in temporary.glob(f"__{rank}_*")}
    checksums_by_rank = gather_objects(own_checksums, group)
    if rank == 0:
        all_checksums = {name: crc for rank_checksums in checksums_by_rank for name, crc in rank_checksums.items()}
        all_checksums[INDEX] = checksums.of_file(temporary / INDEX)  # last: a list cut short has no line for it
        with open(temporary / CHECKSUMS, "w") as file:
            file.writelines(checksums.line(crc, name) for name, crc in all_checksums.items())
            flush_to_disk(file)
        shutil.rmtree(final, ignore_errors=True)
        os.rename(temporary, final)
        flush_folder_to_disk(final.parent)
    dist.barrier(group)  # no rank returns before the rename
    return final
