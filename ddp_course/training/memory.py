"""Memory: what will not be there is refused before it is asked for, and what is there is not given back in between."""

import ctypes

import psutil
import torch

from ddp_course.base.errors import InputError
from ddp_course.distributed.process_group import World
from ddp_course.distributed.rendezvous import integer_from_environment

OUT_OF_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "Storage size calculation overflowed",
    "multiplication overflow",
)

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX in glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let this process keep what its tensors leave; returns whether it can: with glibc, the C library of most Linuxes.

    Left alone, glibc gives large tensors back to the system as they are freed, and the end of its heap as well. The
    next step gets new pages, which Linux fills with zeros one by one: page faults. What the process once held it then
    holds until it ends, and that can be more than it would have been. Notebook 07b, section 7b.7, measures both.
    mallopt(3). PyTorch's tuning guide advises other allocators, jemalloc or TCMalloc, which have to be installed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if not mallopt:
        return False
    # The end of the heap is never trimmed, and tensors of any size come from the heap.
    return bool(mallopt(TRIM_THRESHOLD, -1) and mallopt(MMAP_MAX, 0))


def require_memory(world: World, what: str, need: int) -> None:
    """Raise InputError if a rank needs more than `need` bytes and its share of the machine, or its GPU, has fewer.

    `need` is a lower bound: what is refused could not have run.
    """
    if world.device.type == "cuda":
        free, where = torch.cuda.mem_get_info(world.device)[0], f"{world.device} has"
    else:
        processes = integer_from_environment("LOCAL_WORLD_SIZE", 1, least=1)
        free, where = psutil.virtual_memory().available // processes, f"each of {processes} here has"
    if need > free:
        raise InputError(
            f"{what} needs at least {need / 2**30:,.1f} GiB of memory, {where} {free / 2**30:,.1f} GiB "
            "left; choose smaller sizes"
        )


def training_bytes(parameters: int, dtype: torch.dtype) -> int:
    """What a rank holds of a model that AdamW trains: weights, gradients, and two averages of these."""
    return 4 * parameters * dtype.itemsize


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory, or the range of its addresses, has come to an end."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)
    )
