"""Start and stop the process group: the same call for one process, for torchrun, on CPU and on GPUs.

Each trap of torch 2.13 that belongs to starting and stopping is handled here and nowhere else.
"""

import gc
import os
import sys
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

# The functions of torch.distributed.nn have "the group that exists now" as default argument, and DDP and optimizers
# import it through torch._dynamo. Imported here, before there is a group, it keeps none alive beyond stop().
import torch.distributed.nn

from ddp_course.errors import InputError


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


def start(timeout_seconds: float = 60, device: str = "auto") -> World:
    """Join the process group that torchrun's environment describes; without torchrun, a group of one.

    `device` is "auto", "cpu" or "cuda". A collective that waits longer than `timeout_seconds` raises: torch's
    own default is half an hour, which is how a small mistake becomes a lost night.
    Raises InputError for more processes than GPUs, a port in use, or a rendezvous that nobody answers.
    """
    rank = int(os.environ.get("RANK", 0))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    size = int(os.environ.get("WORLD_SIZE", 1))
    timeout = timedelta(seconds=timeout_seconds)
    launcher = os.getppid()
    place = _pin_device(device, local_rank)
    store = _store(rank, size, timeout)
    dist.init_process_group(
        backend="nccl" if place.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        timeout=timeout,
        # Tells NCCL which GPU is ours: it connects at once, and barrier() need not guess.
        device_id=place if place.type == "cuda" else None,
    )
    return World(rank, local_rank, size, place, store if size > 1 else None, launcher)


def stop() -> None:
    """Leave the process group. Call it when no DDP wrapper is referenced any more.

    Nothing may keep the group: its threads then run on while Python ends, which can end in a C++ abort (exit code
    -6) after a perfectly good run. A DistributedDataParallel keeps it. So training lives in a function of its own,
    its locals die when it returns, and what hangs in reference cycles or in the compiler's caches is collected
    here, before the group goes.
    There is no barrier: a rank that is gone would make it hang.
    """
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


def seed_shared(seed: int) -> None:
    """Seed this process as every other rank: what is built next (the model) is equal on all of them."""
    torch.manual_seed(seed)


def seed_rank(seed: int, rank: int) -> None:
    """Seed this process unlike every other rank: dropout masks differ from here on.

    The pair is hashed. With `seed + rank`, rank 1 of seed 0 would repeat rank 0 of seed 1.
    """
    torch.manual_seed(int(np.random.SeedSequence([seed, rank + 1]).generate_state(1, np.uint64)[0] >> 1))


def _pin_device(device: str, local_rank: int) -> torch.device:
    """Choose this process's device, before the group exists, by LOCAL_RANK: RANK is wrong on a second machine."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError("--device cuda was asked for, but torch sees no CUDA device; use --device cpu")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1 and "LOCAL_RANK" not in os.environ:
        raise InputError("LOCAL_RANK is not set, so each process would take GPU 0; start the job with torchrun")
    processes = max(int(os.environ.get("LOCAL_WORLD_SIZE", 1)), local_rank + 1)
    gpus = torch.cuda.device_count()
    if processes > gpus:
        raise InputError(
            f"{processes} processes were started on this machine but it has {gpus} GPU(s); "
            f"use --nproc-per-node={gpus}, or --device cpu"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _store(rank: int, size: int, timeout: timedelta) -> dist.Store:
    """The key-value store through which the ranks find each other, fresh for each restart of the job."""
    if "MASTER_ADDR" not in os.environ:
        if size > 1:
            raise InputError(f"WORLD_SIZE is {size} but MASTER_ADDR is not set; start the job with torchrun")
        return dist.HashStore()
    address, port = os.environ["MASTER_ADDR"], int(os.environ.get("MASTER_PORT", 29500))
    # torchrun's agent already serves the store; a job started by hand needs rank 0 to do it.
    serve = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = dist.TCPStore(address, port, size, is_master=serve, timeout=timeout)
    except dist.DistError as error:
        if isinstance(error, dist.DistStoreError):
            message = f"of {size} ranks not all came to {address}:{port} within {timeout.seconds} s"
        elif serve:
            message = f"port {port} on {address} is already in use; set MASTER_PORT to a free one"
        else:
            message = f"rank {rank} got no answer from {address}:{port} within {timeout.seconds} s"
        raise InputError(f"{message} ({str(error).splitlines()[0]})") from None
    # The agent keeps one store over restarts. Without a prefix, restarted ranks read the addresses of the dead.
    return dist.PrefixStore(f"attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
