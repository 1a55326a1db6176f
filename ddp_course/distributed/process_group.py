"""Start and stop the process group: the same call for one process, for torchrun, on CPU and on GPUs.

The workarounds for torch's behaviour at start and end of a group are all here.
"""

import gc
import os
import random
import sys
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

# Functions of torch.distributed.nn have the group that exists at its import as a default argument. DDP and optimizers
# import it through torch._dynamo. Imported here, before there is a group, it keeps none alive beyond stop().
import torch.distributed.nn

from ddp_course.base.errors import InputError
from ddp_course.distributed.rendezvous import integer_from_environment, ranks_from_environment, wait_for_all_ranks


@dataclass(frozen=True)
class World:
    """The identity of this process: `rank` of `size` in the job, `local_rank` on this machine, and its `device`.

    store: the key-value store of the rendezvous; None in a job of one process. launcher: the parent process's id.
    """

    rank: int
    local_rank: int
    size: int
    device: torch.device
    store: dist.Store | None = field(default=None, repr=False, compare=False)
    launcher: int = field(default_factory=os.getppid, repr=False, compare=False)

    @property
    def is_main(self) -> bool:
        """True on exactly one rank: the one that writes files and prints."""
        return self.rank == 0

    def say(self, text: str) -> None:
        """Print on rank 0 only: for a text that is the same on every rank."""
        if self.is_main:
            print(text, flush=True)

    def warn(self, text: str) -> None:
        """Print a warning of this rank, whichever it is, to the standard error."""
        print(f"[rank {self.rank}] warning: {text}", file=sys.stderr, flush=True)


_started: World | None = None  # set by start(), cleared by stop()


def start(timeout_seconds: float = 60, device: str = "auto") -> World:
    """Join the process group that torchrun's environment describes; without torchrun, a group of one.

    device: "auto", "cpu" or "cuda". A collective that waits longer than `timeout_seconds` raises: torch's own default
    is half an hour with gloo and ten minutes with NCCL.
    Called again before `stop`, it returns the same world.
    Raises InputError for a process without a GPU of its own, for invalid environment variables, and as
    `wait_for_all_ranks`.
    """
    global _started
    if _started and dist.is_initialized():
        if device not in ("auto", _started.device.type):
            raise InputError(f"the process group is already on {_started.device.type}, so it cannot start on {device}")
        return _started
    launcher = os.getppid()
    rank, local_rank, size = ranks_from_environment()
    own_device = _pin_device(device, local_rank)
    store = wait_for_all_ranks(rank, size, timeout_seconds, launcher) if size > 1 else dist.HashStore()
    try:
        dist.init_process_group(
            backend="nccl" if own_device.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_seconds),
            # NCCL then connects at once, and barrier() need not guess the GPU of this rank.
            device_id=own_device if own_device.type == "cuda" else None,
        )
    except (dist.DistStoreError, dist.DistNetworkError) as error:  # a rank, or the launcher, that has ended meanwhile
        raise InputError(
            f"rank {rank} could not connect to the other ranks within {timeout_seconds:g} s "
            f"({str(error).splitlines()[0]})"
        ) from None
    _started = World(rank, local_rank, size, own_device, store if size > 1 else None, launcher)
    return _started


def stop() -> None:
    """Leave the process group. Call it when no DDP wrapper is referenced any more.

    A DistributedDataParallel keeps the group. Its threads then run on while Python ends, which can cause a C++ abort
    (exit code -6) or a hang after a complete run. So train in a function of its own, whose locals are freed when it
    returns. Wrappers in reference cycles or in the compiler's caches are freed here, before the group is destroyed.
    FSDP2's caches keep the group as well; all of 160 jobs that left them as they were ended cleanly.
    There is no barrier: a rank that is gone would make it hang.
    """
    global _started
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    gc.collect()
    _started = None
    if dist.is_initialized():
        dist.destroy_process_group()


def seed_shared(seed: int) -> None:
    """Seed torch, Python and NumPy alike on every rank: a model that is built next is equal on all of them.

    The seed is below 2**64.
    """
    _seed_generators(seed)


def seed_rank(seed: int, rank: int) -> None:
    """Seed torch, Python and NumPy differently on each rank: dropout masks differ from here on.

    Seed and rank are hashed. With `seed + rank`, rank 1 of seed 0 would repeat rank 0 of seed 1.
    """
    rank_seed = int(np.random.SeedSequence([seed, rank + 1]).generate_state(1, np.uint64)[0] >> 1)
    _seed_generators(rank_seed)


def _seed_generators(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)  # this and NumPy's, because data augmentations and libraries draw from them
    np.random.seed([seed >> 32, seed & 0xFFFFFFFF])  # NumPy takes words of 32 bits


def _pin_device(device: str, local_rank: int) -> torch.device:
    """Choose this process's device, before the group exists, by LOCAL_RANK: RANK is wrong on a second machine."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError("--device cuda was asked for, but torch sees no CUDA device; use --device cpu")
    if integer_from_environment("WORLD_SIZE", 1, least=1) > 1 and "LOCAL_RANK" not in os.environ:
        raise InputError("LOCAL_RANK is not set, so each process would take GPU 0; start the job with torchrun")
    gpus = torch.cuda.device_count()  # of this process: one with `torchrun --virtual-local-rank`, and LOCAL_RANK is 0
    if local_rank >= gpus:
        raise InputError(
            f"process {local_rank} of this machine has no GPU of its own, here are {gpus}; "
            f"use --nproc-per-node={gpus}, or --device cpu"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
