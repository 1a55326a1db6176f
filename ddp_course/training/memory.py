"""Refuse a run that needs more memory than there is, before it allocates any."""

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


def require_memory(world: World, what: str, need: int) -> None:
    """Raise InputError unless `need` bytes are free on this rank's GPU, or in its share of the machine's memory.

    need: a lower bound, so a run that is refused could not have run. what: the subject of the message.
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
    """Bytes on a rank of a model that AdamW trains: weights, gradients, and two moving averages of the gradients."""
    return 4 * parameters * dtype.itemsize


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory, or the range of addresses, is exhausted."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)
    )
