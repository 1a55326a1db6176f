"""What each rank has started, and where the ranks part: gloo pairs collectives by their order, and looks only at sizes.

    log = collective_log(__file__)          # on every rank, of the collectives that this file called
    first_difference([log_of_rank_0, ...])  # outside of the job: a comparison by a collective would be mixed up itself

It needs nothing but torch. NCCL has a recorder of its own, which torch.distributed.debug and the doctor read.
"""

import itertools
import pickle
from collections.abc import Sequence

# To name the frames, the recorder imports it; imported when there is a group, it keeps that one's threads alive.
import torch.distributed.nn  # noqa: F401
from torch._C._distributed_c10d import _dump_fr_trace  # gloo's flight recorder, which is always on

Log = list[list]  # [name, sizes, line] of each collective, as JSON has it


def collective_log(script: str) -> Log:
    """The collectives that `script` has started on this rank, in order.

    The recorder keeps the last 2000, and not their operation: SUM and MAX in one line look alike.
    """
    log = []
    for entry in pickle.loads(_dump_fr_trace(True, True, False))["entries"]:
        lines = [frame["line"] for frame in entry["frames"] if frame["filename"] == script]
        if lines:
            log.append([entry["profiling_name"].partition(":")[2], entry["input_sizes"], lines[0]])
    return log


def first_difference(logs: Sequence[Log]) -> int | None:
    """The first place, from 0, at which not all ranks have started the same in the same line; None if there is none."""
    for place, entries in enumerate(itertools.zip_longest(*logs)):
        if any(entry != entries[0] for entry in entries):
            return place
    return None
