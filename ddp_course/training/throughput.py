"""Prefetch batches to a GPU, and the peak rates to which a run's rate is compared."""

import re
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from ddp_course.base.hardware import GPUS
from ddp_course.distributed.process_group import World


def peak_per_second(world: World, precision: str, flops: float) -> float | None:
    """The tokens per second, each of which takes `flops`, of all ranks together if their GPUs reached their peak.

    None where the peak is not known: on CPUs, in float64, and on a GPU that the table lacks.
    """
    if world.device.type != "cuda":
        return None
    peak = peak_flops(torch.cuda.get_device_name(world.device), precision)
    return None if peak is None else peak * world.size / flops


def peak_flops(device_name: str, precision: str) -> float | None:
    """The stated FLOP/s of one GPU for matrix products in this precision; None if not known."""
    column = {"bfloat16": "flops", "float16": "flops", "tf32": "tf32", "float32": "float32"}.get(precision)
    gpu = next((gpu for name, gpu in GPUS.items() if re.search(rf"\b{name}\b", device_name)), None)
    return getattr(gpu, column) if gpu and column else None


def prefetch(batches: Iterable[tuple[Tensor, ...]], device: torch.device) -> Iterator[tuple[Tensor, ...]]:
    """The batches on `device`, each read and copied while the GPU works on the one before it.

    A GPU computes asynchronously: while it is busy, Python reads the next batch and queues its copy from pinned memory.
    Only then does Python wait for a result. On a CPU nothing is read early.
    """
    next_batch = None
    for batch in batches:
        if device.type == "cuda":
            batch = tuple(part.pin_memory().to(device, non_blocking=True) for part in batch)
            next_batch, batch = batch, next_batch
        if batch is not None:
            yield batch
    if next_batch is not None:
        yield next_batch
