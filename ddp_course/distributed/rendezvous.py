"""Rendezvous: read the launcher's environment variables and wait for all ranks, with a deadline."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import torch.distributed as dist

from ddp_course.base.errors import InputError


def ranks_from_environment() -> tuple[int, int, int]:
    """Read RANK, LOCAL_RANK and WORLD_SIZE; without a launcher 0, 0 and 1. Raises InputError if one is out of range."""
    rank, local_rank = (integer_from_environment(name, 0, least=0) for name in ("RANK", "LOCAL_RANK"))
    size = integer_from_environment("WORLD_SIZE", 1, least=1)
    if rank >= size:
        raise InputError(f"RANK is {rank}, but WORLD_SIZE is {size}: the ranks of this job are 0 to {size - 1}")
    return rank, local_rank, size


def integer_from_environment(name: str, default: int, *, least: int, most: int = 2**31 - 1) -> int:
    """Read a whole number from an environment variable. Raises InputError unless it is from `least` to `most`."""
    text = os.environ.get(name, str(default))
    number = whole_number(text)
    if number is None or not least <= number <= most:
        raise InputError(f"{name} is {text!r}, expected a whole number from {least} to {most}")
    return number


def whole_number(text: str) -> int | None:
    """The number that `text` gives in up to 19 ASCII digits; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def launcher_is_gone(launcher: int) -> bool:
    """Whether the process `launcher`, which started this rank, has ended; False without a launcher.

    kill -9 of torchrun sends no signal to its ranks: they get another parent and would run on.
    """
    return "LOCAL_RANK" in os.environ and os.getppid() != launcher


def wait_for_all_ranks(rank: int, size: int, seconds: float, launcher: int) -> dist.Store:
    """Wait for all `size` ranks and return the key-value store of this attempt of the job.

    Raises InputError after `seconds`, or as soon as the launcher has ended. TCPStore's own wait takes up to
    2.5 times its timeout and does not notice that the launcher has ended.
    """
    if "MASTER_ADDR" not in os.environ:
        raise InputError(f"WORLD_SIZE is {size} but MASTER_ADDR is not set; start the job with torchrun")
    address = os.environ["MASTER_ADDR"]
    port = integer_from_environment("MASTER_PORT", 29500, least=1, most=2**16 - 1)
    deadline = time.monotonic() + seconds
    # torchrun's agent already serves the store; a job started by hand needs rank 0 to do it.
    launcher_serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    serve = rank == 0 and not launcher_serves
    if not serve:
        _wait_for_answer(rank, address, port, seconds, deadline, launcher_serves, launcher)
    # The agent keeps one store over restarts. Without a prefix, restarted ranks would read stale addresses.
    # A store served by rank 0 is new, and needs no prefix; agents may disagree on the number of restarts.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", 0) if launcher_serves else 0
    store = dist.PrefixStore(f"attempt_{attempt}", _connect(rank, address, port, serve, seconds, deadline, launcher))
    with store_errors():
        if store.add(f"rank_{rank}", 1) == 1:
            store.add("ranks", 1)
        pause = 0.001
        while store.add("ranks", 0) < size:
            if launcher_is_gone(launcher):
                raise InputError(f"rank {rank} ends: its launcher has ended before all {size} ranks had come")
            late = time.monotonic() > deadline
            # Asked again: they may have come since, if this process was stopped.
            if late and (missing := [str(other) for other in range(size) if not store.check([f"rank_{other}"])]):
                shown = ", ".join(missing[:8]) + (" ..." if len(missing) > 8 else "")
                raise InputError(
                    f"of {size} ranks not all came to {address}:{port} within {seconds:g} s; missing: {shown}"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.2)
    return store


def _connect(
    rank: int, address: str, port: int, serve: bool, seconds: float, deadline: float, launcher: int
) -> dist.Store:
    """Connect to the TCPStore or serve it. In a thread, because TCPStore waits forever for a server of another kind."""
    outcome: list[dist.Store | Exception] = []

    def connect() -> None:
        timeout = timedelta(seconds=seconds)
        try:
            outcome.append(dist.TCPStore(address, port, is_master=serve, wait_for_workers=False, timeout=timeout))
        except (dist.DistError, RuntimeError) as error:
            outcome.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    last = time.monotonic() + max(1.0, deadline - time.monotonic())
    while thread.is_alive() and (left := last - time.monotonic()) > 0:
        thread.join(min(left, 0.25))
        if thread.is_alive() and launcher_is_gone(launcher):  # since it has answered
            raise InputError(f"rank {rank} ends: its launcher has ended before it met the others at {address}:{port}")
    result = outcome[0] if outcome else f"it does not answer as torch's store does within {seconds:g} s"
    if isinstance(result, dist.Store):
        return result
    if serve and isinstance(result, dist.DistNetworkError):
        raise InputError(
            f"port {port} on {address} is already in use; set MASTER_PORT to a free one ({str(result).splitlines()[0]})"
        )
    raise InputError(f"rank {rank} cannot meet the others at {address}:{port}: {str(result).splitlines()[0]}")


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Turn a lost connection to the store into an InputError: the launcher, or rank 0, that served it has ended."""
    try:
        yield
    except dist.DistNetworkError:
        raise InputError("the connection to the job's store is lost: the launcher, or rank 0, has ended") from None


def _wait_for_answer(
    rank: int, address: str, port: int, seconds: float, deadline: float, launcher_serves: bool, launcher: int
) -> None:
    """Wait until a process listens at the address. Raises InputError as `wait_for_all_ranks`."""
    refusals = 0  # in a row
    while True:
        late = time.monotonic() > deadline  # before it is asked: this process may be stopped after it
        try:
            socket.create_connection((address, port), timeout=max(0.1, min(5.0, deadline - time.monotonic()))).close()
            return
        except UnicodeError:
            raise InputError(f"MASTER_ADDR is {address!r}, which is not the name of a machine") from None
        except OSError as error:
            refusals = refusals + 1 if isinstance(error, ConnectionRefusedError) else 0
            reason = error.strerror or str(error)
        # The launcher serves its store before it starts ranks: if the port refuses connections, it has ended.
        if launcher_is_gone(launcher) or (launcher_serves and refusals >= 8):
            raise InputError(f"rank {rank} ends: its launcher, which served {address}:{port}, has ended")
        if late:
            raise InputError(f"rank {rank} got no answer from {address}:{port} within {seconds:g} s ({reason})")
        time.sleep(min(0.25, max(0.0, deadline - time.monotonic())))
