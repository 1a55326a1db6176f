"""How the ranks find each other: what the environment says, and a wait that is as long as it says."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import torch.distributed as dist

from ddp_course.base.errors import InputError


def place_in_job() -> tuple[int, int, int]:
    """RANK, LOCAL_RANK and WORLD_SIZE; without a launcher 0, 0 and 1. Raises InputError for what is no such number."""
    rank, local_rank = from_environment("RANK", 0, least=0), from_environment("LOCAL_RANK", 0, least=0)
    size = from_environment("WORLD_SIZE", 1, least=1)
    if rank >= size:
        raise InputError(f"RANK is {rank}, but WORLD_SIZE is {size}: the ranks of this job are 0 to {size - 1}")
    return rank, local_rank, size


def from_environment(name: str, default: int, *, least: int, most: int = 2**31 - 1) -> int:
    """The whole number in an environment variable. Raises InputError unless it is one from `least` to `most`."""
    text = os.environ.get(name, str(default))
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
    if number is None or not least <= number <= most:
        raise InputError(f"{name} is {text!r}, expected a whole number from {least} to {most}")
    return number


def launcher_is_gone(launcher: int) -> bool:
    """Whether the process that started this rank has ended. kill -9 of torchrun sends its ranks nothing: they are
    handed to another parent, and would go on unseen."""
    return "LOCAL_RANK" in os.environ and os.getppid() != launcher


def meet(rank: int, size: int, seconds: float, launcher: int) -> dist.Store:
    """The key-value store of this job, once all `size` ranks are there, fresh for each restart of the job.

    Raises InputError after `seconds`, or sooner if the launcher is gone, whose store nobody serves any more.
    Not TCPStore's own wait: it takes up to two and a half times its timeout, and hears of no launcher.
    """
    if "MASTER_ADDR" not in os.environ:
        raise InputError(f"WORLD_SIZE is {size} but MASTER_ADDR is not set; start the job with torchrun")
    address, port = os.environ["MASTER_ADDR"], from_environment("MASTER_PORT", 29500, least=1, most=2**16 - 1)
    where, deadline = f"{address}:{port}", time.monotonic() + seconds
    # torchrun's agent already serves the store; a job started by hand needs rank 0 to do it.
    of_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serve = rank == 0 and not of_launcher
    if not serve:
        _wait_for_answer(rank, address, port, seconds, deadline, of_launcher, launcher)
    # The agent keeps one store over restarts. Without a prefix, restarted ranks read the addresses of the dead.
    # A store of rank 0 is fresh. There the ranks may differ: each agent counts the restarts that it has seen itself.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", 0) if of_launcher else 0
    store = dist.PrefixStore(f"attempt_{attempt}", _connect(rank, address, port, serve, seconds, deadline))
    with told_if_the_store_is_lost():
        if store.add(f"rank_{rank}", 1) == 1:
            store.add("ranks", 1)
        pause = 0.001
        while store.add("ranks", 0) < size:
            if launcher_is_gone(launcher):
                raise InputError(f"rank {rank} ends: its launcher has ended before all {size} ranks had come")
            if time.monotonic() > deadline:
                missing = [str(other) for other in range(size) if not store.check([f"rank_{other}"])]
                shown = ", ".join(missing[:8]) + (" ..." if len(missing) > 8 else "")
                raise InputError(f"of {size} ranks not all came to {where} within {seconds:g} s; missing: {shown}")
            time.sleep(pause)
            pause = min(2 * pause, 0.2)
    return store


def _connect(rank: int, address: str, port: int, serve: bool, seconds: float, deadline: float) -> dist.Store:
    """TCPStore, in a thread: it would wait without end for the greeting of somebody who is no store."""
    made: list[dist.Store | Exception] = []

    def connect() -> None:
        timeout = timedelta(seconds=seconds)
        try:
            made.append(dist.TCPStore(address, port, is_master=serve, wait_for_workers=False, timeout=timeout))
        except (dist.DistError, RuntimeError) as error:
            made.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(max(1.0, deadline - time.monotonic()))
    result = made[0] if made else f"it does not answer as torch's store does within {seconds:g} s"
    if isinstance(result, dist.Store):
        return result
    if serve and isinstance(result, dist.DistNetworkError):
        raise InputError(
            f"port {port} on {address} is already in use; set MASTER_PORT to a free one ({str(result).splitlines()[0]})"
        )
    raise InputError(f"rank {rank} cannot meet the others at {address}:{port}: {str(result).splitlines()[0]}")


@contextlib.contextmanager
def told_if_the_store_is_lost() -> Iterator[None]:
    """The store lives in the launcher, or in rank 0 of a job that was started by hand, and ends with it."""
    try:
        yield
    except dist.DistNetworkError:
        raise InputError("the connection to the job's store is lost: the launcher, or rank 0, has ended") from None


def _wait_for_answer(
    rank: int, address: str, port: int, seconds: float, deadline: float, of_launcher: bool, launcher: int
) -> None:
    """Return as soon as somebody listens there."""
    refused = 0
    while True:
        try:
            socket.create_connection((address, port), timeout=max(0.1, min(5.0, deadline - time.monotonic()))).close()
            return
        except UnicodeError:
            raise InputError(f"MASTER_ADDR is {address!r}, which is not the name of a machine") from None
        except OSError as error:
            refused = refused + 1 if isinstance(error, ConnectionRefusedError) else 0
            reason = error.strerror or str(error)
        # The launcher serves its store before it starts us: where nobody listens any more, it has ended.
        if launcher_is_gone(launcher) or (of_launcher and refused >= 8):
            raise InputError(f"rank {rank} ends: its launcher, which served {address}:{port}, has ended")
        if time.monotonic() > deadline:
            raise InputError(f"rank {rank} got no answer from {address}:{port} within {seconds:g} s ({reason})")
        time.sleep(min(0.25, max(0.0, deadline - time.monotonic())))
