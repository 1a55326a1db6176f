"""A rank of parallel_ddp.py up to the moment when its part of the model is there, given the trainer's flags.

Prints the bytes by which the process grew meanwhile, and those of the parameters that it holds.
"""

import ctypes
import json
import resource
import sys
from unittest import mock

from training_runs import one_process_group

from ddp_course import parallel_ddp
from ddp_course.training.command_line import parse

UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes


class Built(Exception):
    """The model is there."""


def peak() -> int:
    """The largest size that this process had so far."""
    return UNIT * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    sizes = {}
    if sys.platform == "linux":  # glibc keeps what is freed, now more, now less; above 64 KiB, nothing
        ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD

    def note_start(*arguments):
        sizes["start"] = peak()

    def note_end(stage, *arguments):
        locals_of_shards = [getattr(p, "_local_tensor", p) for p in stage.parameters()]
        sizes.update(end=peak(), own=sum(local.nbytes for local in locals_of_shards))
        raise Built

    config = parse(parallel_ddp.PRESETS, sys.argv[1:])
    with (
        one_process_group(),
        mock.patch.object(parallel_ddp, "require_memory", note_start),
        mock.patch.object(parallel_ddp, "Pipeline", note_end),
    ):
        try:
            parallel_ddp.train(config)
        except Built:
            pass
    print(json.dumps({"grown": sizes["end"] - sizes["start"], "own": sizes["own"]}))


if __name__ == "__main__":
    main()
