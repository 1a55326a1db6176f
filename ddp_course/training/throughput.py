"""Keep a GPU fed with batches, and say what share of its arithmetic a run makes use of."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from ddp_course.distributed.process_group import World

# Dense FLOP/s on one GPU, in 10^12, as its maker states them: half precision (float32 sums), TF32, float32.
# The first name that is found in the device's own name counts.
PEAKS = {
    "GB200": (2500, 1250, 80),
    "B200": (2250, 1125, 75),
    "GH200": (989, 494, 67),
    "H200": (989, 494, 67),
    "H100 PCIe": (756, 378, 51),
    "H100 NVL": (835, 417, 60),
    "H100": (989, 494, 67),
    "A100": (312, 156, 19.5),
    "A10G": (70, 35, 31.2),
    "A10": (125, 62.5, 31.2),
    "A40": (150, 75, 37.4),
    "L40S": (362, 183, 91.6),
    "L4": (121, 60, 30.3),
    "V100": (125, 15.7, 15.7),
    "T4": (65, 8.1, 8.1),
    "RTX 4090": (165, 82.6, 82.6),
    "RTX 3090": (71, 35.6, 35.6),
}


def peak_per_second(world: World, precision: str, flops: float) -> float | None:
    """How many tokens, each of which takes `flops`, all ranks could train on if their GPUs reached their peak.

    None where the peak is not known: on CPUs, in float64, and on a GPU that the table lacks.
    """
    if world.device.type != "cuda":
        return None
    peak = peak_flops(torch.cuda.get_device_name(world.device), precision)
    return peak and peak * world.size / flops


def peak_flops(device_name: str, precision: str) -> float | None:
    """The stated FLOP/s of one GPU for matrix products in this precision; None if not known."""
    column = {"bfloat16": 0, "float16": 0, "tf32": 1, "float32": 2}.get(precision)
    stated = next((peaks for name, peaks in PEAKS.items() if name in device_name), None)
    return None if stated is None or column is None else stated[column] * 1e12


def copied_ahead(batches: Iterable[tuple[Tensor, ...]], device: torch.device) -> Iterator[tuple[Tensor, ...]]:
    """The batches on `device`, each read and sent while the one before it is worked on.

    A GPU computes behind Python's back: while it is busy, Python reads the next batch, and the copy from pinned memory
    is queued without waiting. Only then does Python wait for a result. On a CPU nothing is gained by reading early.
    """
    ahead = None
    for batch in batches:
        if device.type == "cuda":
            batch = tuple(part.pin_memory().to(device, non_blocking=True) for part in batch)
            ahead, batch = batch, ahead
        if batch is not None:
            yield batch
    if ahead is not None:
        yield ahead
