"""A log of the collectives that each rank has started. gloo pairs collectives by order and compares only their sizes.

    log = collective_log(__file__)          # on every rank, of the collectives that this file called
    first_difference([log_of_rank_0, ...])  # outside of the job: in the job, a collective could be mismatched itself

This uses gloo's flight recorder. NCCL has another one, which torch.distributed.debug and the doctor read.
"""

import itertools
import pickle
from collections.abc import Sequence

# The recorder imports torch.distributed.nn to name frames. Imported while a group exists, it keeps the group alive.
import torch.distributed.nn  # noqa: F401
from torch._C._distributed_c10d import _dump_fr_trace  # gloo's flight recorder, which is always on

Log = list[list]  # [name, sizes, line] of each collective


def collective_log(script: str) -> Log:
    """The collectives that `script` has started on this rank, in order.

    The recorder keeps the last 2000 collectives without their operation: SUM and MAX in one line look the same.
    """
    log = []
    for entry in pickle.loads(_dump_fr_trace(True, True, False))["entries"]:
        lines = [frame["line"] for frame in entry["frames"] if frame["filename"] == script]
        if lines:
            log.append([entry["profiling_name"].partition(":")[2], entry["input_sizes"], lines[0]])
    return log


def first_difference(logs: Sequence[Log]) -> int | None:
    """The index of the first collective that differs between ranks in name, sizes or line; None if there is none."""
    for index, entries in enumerate(itertools.zip_longest(*logs)):
        if any(entry != entries[0] for entry in entries):
            return index
    return None
