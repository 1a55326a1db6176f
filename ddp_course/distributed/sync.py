"""Agreement between ranks: one decision for all, exact sums, and values that are the same everywhere."""

import contextlib
import itertools
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_course.base.errors import InputError
from ddp_course.distributed.process_group import World
from ddp_course.distributed.rendezvous import launcher_is_gone, store_errors
from ddp_course.distributed.replica_check import ReplicasDiffer

T = TypeVar("T")
SHORTEST_SILENCE = 10  # seconds that a busy machine may delay a heartbeat
_turns = itertools.count()  # numbers the calls of from_rank_0, which all ranks make in the same order


class RankSilent(RuntimeError):
    """A rank that the others wait for neither finishes nor fails."""


def from_rank_0(world: World, make: Callable[[], T]) -> T:
    """Run `make` on rank 0 and return its (picklable) result on every rank.

    Raises on *every* rank if `make` raised or its result cannot be pickled, so no rank waits for a result that will
    never come: the original exception on rank 0, an InputError with its message on the others.
    `make` may take longer than the timeout of a collective: meanwhile rank 0 sends heartbeats, and the others raise
    RankSilent when none has come for as long as that timeout, and for at least SHORTEST_SILENCE.
    """
    turn = f"from_rank_0/{next(_turns)}"
    failure: Exception | None = None
    if world.is_main:
        with _heartbeats(world.store, turn):
            try:
                message = pickle.dumps((make(), None))
            except Exception as error:
                failure, message = error, pickle.dumps((None, str(error) or type(error).__name__))
        if world.store:
            with store_errors():
                world.store.set(turn, "done")
    else:
        message = b""
        if world.store:
            with store_errors():
                _wait_for_rank_0(world, world.store, turn)
    box = [message]
    dist.broadcast_object_list(box, src=0, device=world.device)
    if failure is not None:
        raise failure
    result, error_text = pickle.loads(box[0])
    if error_text is not None:
        raise InputError(error_text)
    return result


@contextlib.contextmanager
def _heartbeats(store: dist.Store | None, turn: str) -> Iterator[None]:
    """Increase a counter in the store while the block runs, from a thread, which stops if the process is frozen."""
    if store is None:
        yield
        return
    done = threading.Event()
    pause = min(5, store.timeout.total_seconds() / 10)

    def count() -> None:
        while not done.wait(pause):
            store.add(f"{turn}/alive", 1)

    thread = threading.Thread(target=count, name="heartbeats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _wait_for_rank_0(world: World, store: dist.Store, turn: str) -> None:
    """Return once rank 0 has set `turn`. Raises RankSilent if its heartbeats end, InputError if the launcher ends."""
    limit = max(SHORTEST_SILENCE, store.timeout.total_seconds())
    pause, last_count = 0.001, 0
    silence = 0.0  # the sum of the pauses since a heartbeat: by a clock, this process may have been stopped itself
    while not store.check([turn]):
        if launcher_is_gone(world.launcher):
            raise InputError(f"rank {world.rank} ends: its launcher has ended while it waited for rank 0")
        if (count := store.add(f"{turn}/alive", 0)) != last_count:
            last_count, silence = count, 0.0
        if silence > limit:
            raise RankSilent(
                f"rank 0 has given no sign of life for {limit:g} s, in which the others waited for what it prepares: "
                f"its process is stopped or its machine does not answer"
            )
        time.sleep(pause)
        silence += pause
        pause = min(2 * pause, 0.2)


def sum_over_ranks(world: World, *values: float | Tensor) -> list[float]:
    """The sum of each value over all ranks, in float64 and in one all-reduce.

    For a mean, pass the sum and the count and divide: a mean of per-rank means is wrong as soon as one rank
    holds fewer items.
    """
    options = {"dtype": torch.float64, "device": world.device}  # a Python float would become float32 otherwise
    totals = torch.stack([torch.as_tensor(value, **options).detach() for value in values])
    dist.all_reduce(totals)
    return totals.tolist()


def gather_objects(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """The (picklable) value of every rank of the group, in order of rank (collective)."""
    values: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def assert_same_value(name: str, value: object) -> None:
    """Raise ReplicasDiffer on every rank unless all ranks hold the same (picklable) `value`."""
    values = gather_objects(value)
    for rank, other in enumerate(values):
        if other != values[0]:
            raise ReplicasDiffer(f"{name} differs: rank 0 has {values[0]!r}, rank {rank} has {other!r}")
