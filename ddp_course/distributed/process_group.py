"""Start and stop the process group: the same call for one process, for torchrun, on CPU and on GPUs.

Each trap of torch that belongs to starting and stopping is handled here and nowhere else.
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

# Its functions have "the group that exists now" as default argument, and DDP and optimizers import it through
# torch._dynamo. Imported here, before there is a group, it keeps none alive beyond stop().
import torch.distributed.nn

from ddp_course.base.errors import InputError
from ddp_course.distributed.rendezvous import integer_from_environment, meet, ranks_from_environment


@dataclass(frozen=True)
class World:
    """Who this process is: `rank` of `size` in the job, `local_rank` on this machine, and its `device`.

    `store` is where the ranks have met (None: nobody else to meet), `launcher` the process that started this one.
    """

    rank: int
    local_rank: int
    size: int
    device: torch.device
    store: dist.Store | None = field(default=None, repr=False, compare=False)
    launcher: int = field(default_factory=os.getppid, repr=False, compare=False)

    @property
    def is_main(self) -> bool:
        """True on exactly one rank: the one that writes files and speaks for all."""
        return self.rank == 0

    def say(self, text: str) -> None:
        """Print what is the same on every rank, once."""
        if self.is_main:
            print(text, flush=True)

    def warn(self, text: str) -> None:
        """Print what concerns this rank alone. Only `say` is limited to rank 0: a problem is never hidden."""
        print(f"[rank {self.rank}] warning: {text}", file=sys.stderr, flush=True)


_started: World | None = None  # by start(), until stop()


def start(timeout_seconds: float = 60, device: str = "auto") -> World:
    """Join the process group that torchrun's environment describes; without torchrun, a group of one.

    `device` is "auto", "cpu" or "cuda". A collective that waits longer than `timeout_seconds` raises: torch's
    own default is half an hour with gloo and ten minutes with NCCL.
    Called again before `stop`, it returns the same world.
    Raises InputError for more processes than GPUs, for an environment that makes no sense, and as `rendezvous.meet`.
    """
    global _started
    if _started and dist.is_initialized():
        if device not in ("auto", _started.device.type):
            raise InputError(f"the process group is already on {_started.device.type}, so it cannot start on {device}")
        return _started
    launcher = os.getppid()
    rank, local_rank, size = ranks_from_environment()
    own_device = _pin_device(device, local_rank)
    store = meet(rank, size, timeout_seconds, launcher) if size > 1 else dist.HashStore()
    try:
        dist.init_process_group(
            backend="nccl" if own_device.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_seconds),
            # Tells NCCL which GPU is ours: it connects at once, and barrier() need not guess.
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

    A DistributedDataParallel keeps the group. Its threads then run on while Python ends, which can end in a C++ abort
    (exit code -6) or hang, after a perfectly good run. So training lives in a function of its own, its locals die when
    it returns, and what hangs in reference cycles or in the caches of the compiler is collected here, before the group
    goes. FSDP2's caches keep the group as well; of 160 jobs that left them as they were, all ended cleanly.
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
    """Seed this process as every other rank: what is built next (the model) is equal on all of them.

    Torch's generators, Python's and NumPy's. The seed is below 2**64.
    """
    torch.manual_seed(seed)
    _seed_others(seed)


def seed_rank(seed: int, rank: int) -> None:
    """Seed this process unlike every other rank: dropout masks differ from here on.

    The pair is hashed. With `seed + rank`, rank 1 of seed 0 would repeat rank 0 of seed 1.
    """
    own = int(np.random.SeedSequence([seed, rank + 1]).generate_state(1, np.uint64)[0] >> 1)
    torch.manual_seed(own)
    _seed_others(own)


def _seed_others(seed: int) -> None:
    """Python's generator and NumPy's: a data augmentation or a library may draw from them."""
    random.seed(seed)
    np.random.seed([seed >> 32, seed & 0xFFFFFFFF])  # it takes words of 32 bits


def _pin_device(device: str, local_rank: int) -> torch.device:
    """Choose this process's device, before the group exists, by LOCAL_RANK: RANK is wrong on a second machine."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError("--device cuda was asked for, but torch sees no CUDA device; use --device cpu")
    if integer_from_environment("WORLD_SIZE", 1, least=1) > 1 and "LOCAL_RANK" not in os.environ:
        raise InputError("LOCAL_RANK is not set, so each process would take GPU 0; start the job with torchrun")
    processes = max(integer_from_environment("LOCAL_WORLD_SIZE", 1, least=1), local_rank + 1)
    gpus = torch.cuda.device_count()
    if processes > gpus:
        raise InputError(
            f"{processes} processes were started on this machine but it has {gpus} GPU(s); "
            f"use --nproc-per-node={gpus}, or --device cpu"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
