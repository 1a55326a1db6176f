"""Save a distributed checkpoint through fsspec, and observe what a reader loads while it is written or replaced."""

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable
from unittest import mock

import fsspec
import torch
import torch.distributed.checkpoint as dcp
from fsspec.implementations.memory import MemoryFileSystem
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

NAMES = "weights", "moments"
CHANGES = "_open", "cp_file", "rm_file"  # the calls through which objects in memory are written, copied and deleted


def save(url: str, step: int) -> None:
    """Write a checkpoint of NAMES in one process: a file for each, whose values are `step`, and last `.metadata`."""
    state = {name: torch.full((4,), float(step)) for name in NAMES}
    # The warnings are that there is no process group, and that a checkpoint is replaced.
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        dcp.save(state, no_dist=True, storage_writer=FsspecWriter(url, single_file_per_rank=False))


def read(url: str) -> str:
    """The steps that a reader loads, such as "weights 1 and moments 2", if `.metadata` marks a complete checkpoint.

    "no marker" if there is no such file; "marker, unreadable" if the checkpoint cannot be loaded.
    """
    state = {name: torch.zeros(4) for name in NAMES}
    if not fsspec.url_to_fs(url)[0].exists(f"{url}/.metadata"):
        return "no marker"
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            dcp.load(state, no_dist=True, storage_reader=FsspecReader(url))
    except dcp.api.CheckpointException:
        return "marker, unreadable"
    return " and ".join(f"{name} {values[0]:.0f}" for name, values in state.items())


def reads_during(act: Callable[[], None], url: str) -> list[str]:
    """The results of `read` before each change that `act` makes to fsspec's in-memory store, and after the last one.

    Of equal results in a row only the first is kept.
    """
    results = []

    def change(store, operation, *arguments, **options):
        if options.get("mode") != "rb":
            results.append(read(url))
        return operation(store, *arguments, **options)

    with contextlib.ExitStack() as patches:
        for name in CHANGES:
            method = functools.partialmethod(change, getattr(MemoryFileSystem, name))
            patches.enter_context(mock.patch.object(MemoryFileSystem, name, method))
        act()
    return [result for result, _ in itertools.groupby([*results, read(url)])]
