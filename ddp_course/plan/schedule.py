"""DDP's schedule as a small discrete-event simulation: what a rank computes, and when which bucket is on its link.

Rules, in the order in which they act:

1. Forward sends nothing.
2. Backward makes the gradients in the reverse of forward's order; each takes its `cost`, a share of backward.
3. A bucket closes with the gradient that brings it to its limit, so that it may be larger, or with the last gradient.
   By default the first bucket's limit is 1 MiB and that of the others 25 MiB; `bucket_cap_mb` is the limit of all.
4. One message at a time, in the order of the buckets: a bucket waits for its last gradient and for the link.
5. Computation goes on while a message travels (overlap). The optimizer waits for the last message.
6. With accumulation, only the last micro-batch sends (`no_sync` for the others).

Ranks are alike here. What makes them differ, a slow one or chance, belongs into the seconds of forward and backward.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ddp_course.base.errors import InputError

MIB = 2**20
FIRST_BUCKET, BUCKET = 1 * MIB, 25 * MIB  # torch's defaults


@dataclass(frozen=True)
class Compute:
    """Seconds of a rank: forward and backward of one micro-batch, and the optimizer's step."""

    forward: float
    backward: float
    optimizer: float = 0.0

    def scaled(self, factor: float) -> "Compute":
        return Compute(self.forward * factor, self.backward * factor, self.optimizer * factor)


class Gradient(NamedTuple):
    """The gradient of one parameter: its bytes, and what backward computes from the gradient before it until it is
    complete, in any unit. For matrix products that is the number of elements."""

    bytes: float
    cost: float


@dataclass(frozen=True)
class SimulatedStep:
    """The outcome: the seconds of the step, and its events as `lab.figures.rank_lanes` draws them. A message's
    "ready" is when its bucket was full."""

    seconds: float
    exposed: float  # seconds in which the rank waited for messages
    events: tuple[dict, ...]


def buckets(gradients: Sequence[Gradient], bucket_mib: float | None = None) -> list[Gradient]:
    """The sums of each bucket (rule 3), for gradients in the order in which backward makes them."""
    if not gradients or min(gradient.bytes for gradient in gradients) <= 0:
        raise InputError("a model has at least one gradient, of at least one byte")
    if bucket_mib is not None and not bucket_mib > 0:
        raise InputError(f"a bucket's limit is above 0 MiB, got {bucket_mib}")
    limit, others = (FIRST_BUCKET, BUCKET) if bucket_mib is None else (bucket_mib * MIB, bucket_mib * MIB)
    closed, size, cost = [], 0.0, 0.0
    for number, gradient in enumerate(gradients, start=1):
        size, cost = size + gradient.bytes, cost + gradient.cost
        if size >= limit or number == len(gradients):
            closed.append(Gradient(size, cost))
            limit, size, cost = others, 0.0, 0.0
    return closed


def simulate(
    compute: Compute,
    gradients: Sequence[Gradient],
    all_reduce: Callable[[float], float],
    *,
    bucket_mib: float | None = None,
    accumulation: int = 1,
    overlap: bool = True,
    no_sync: bool = True,
) -> SimulatedStep:
    """One optimizer step.

    gradients: in the order in which backward makes them. all_reduce: seconds of a message of so many bytes; for one
    rank `lambda size: 0`. overlap=False holds every message back until backward is over, no_sync=False sends in every
    micro-batch: for comparison.
    """
    if accumulation < 1:
        raise InputError(f"a step has at least one micro-batch, got {accumulation}")
    messages, whole = buckets(gradients, bucket_mib), sum(gradient.cost for gradient in gradients)
    now = exposed = 0.0
    events = []

    def note(name: str, kind: str, start: float, end: float, **more: float) -> None:
        if end > start:
            events.append({"name": name, "kind": kind, "start": start, "end": end, **more})

    for micro in range(accumulation):
        note("forward", "compute", now, now + compute.forward)  # rule 1
        start = now + compute.forward
        done = start + compute.backward
        note("backward", "compute", start, done)
        link_free, computed = start, 0.0
        if micro == accumulation - 1 or not no_sync:  # rule 6
            for number, (size, cost) in enumerate(messages):
                computed += cost
                ready = start + compute.backward * computed / whole if overlap else done  # rules 2 and 5
                begin = max(ready, link_free)  # rule 4
                link_free = begin + all_reduce(size)
                note(f"{number}", "communication", begin, link_free, ready=ready)
        now = max(done, link_free)
        note("wait", "idle", done, now)
        exposed += now - done
    note("optimizer", "compute", now, now + compute.optimizer)
    return SimulatedStep(now + compute.optimizer, exposed, tuple(events))
