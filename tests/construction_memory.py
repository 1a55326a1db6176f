"""A rank of parallel_ddp.py, given its flags, that ends when its part of the model has been constructed.

Prints the bytes by which the process grew meanwhile, and the bytes of its parameters.
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


class Constructed(Exception):
    """Ends the trainer after the construction of its model."""


def peak() -> int:
    """The largest resident size of this process so far, in bytes."""
    return UNIT * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    sizes = {}
    if sys.platform == "linux":  # let glibc return every freed block above 64 KiB to the system
        ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD

    def note_start(*arguments):
        sizes["start"] = peak()

    def note_end(stage, *arguments):
        locals_of_shards = [getattr(p, "_local_tensor", p) for p in stage.parameters()]
        sizes.update(end=peak(), own=sum(local.nbytes for local in locals_of_shards))
        raise Constructed

    config = parse(parallel_ddp.PRESETS, sys.argv[1:])
    with (
        one_process_group(),
        mock.patch.object(parallel_ddp, "require_memory", note_start),
        mock.patch.object(parallel_ddp, "Pipeline", note_end),
    ):
        try:
            parallel_ddp.train(config)
        except Constructed:
            pass
    print(json.dumps({"grown": sizes["end"] - sizes["start"], "own": sizes["own"]}))


if __name__ == "__main__":
    main()
