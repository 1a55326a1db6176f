"""The traces that torch.profiler writes on every rank, on one clock, and merged into one file for Perfetto.

Each rank stamps its events by its own clock, and clocks of different machines disagree. What all ranks share is their
collectives: no rank can end an all-reduce before every rank has started it. Each all-reduce thus bounds how far two
clocks are apart, and that its ends nearly coincide on all ranks says how far they are.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median

from ddp_course.base.errors import InputError

MEETS = ("all_reduce", "barrier", "all_gather", "reduce_scatter")  # none of them ends before all ranks have started


@dataclass(frozen=True)
class Span:
    """One event with a duration; seconds on the clock of its trace. `shape` is what the profiler says of its inputs."""

    name: str
    category: str
    thread: int | str
    start: float
    end: float
    shape: str = ""


@dataclass(frozen=True)
class Trace:
    """What one rank's profiler recorded: Chrome's events, and the microseconds to add to each time stamp."""

    rank: int
    events: list[dict]
    shift: float = 0.0

    @cached_property
    def spans(self) -> list[Span]:
        found = [
            Span(
                e["name"],
                e.get("cat", ""),
                e["tid"],
                (float(e["ts"]) + self.shift) / 1e6,
                (float(e["ts"]) + e["dur"] + self.shift) / 1e6,
                str(e.get("args", {}).get("Input Dims", "")),
            )
            for e in self.events
            if e.get("ph") == "X"
        ]
        return sorted(found, key=lambda span: span.start)

    @property
    def messages(self) -> list[Span]:
        """The collectives as the backend ran them: on gloo's own threads, or on the GPU's stream of NCCL.

        Of NCCL the CPU's thread has spans of the same names: they end when the kernels are queued, not when they ran.
        """
        return [
            span
            for span in self.spans
            if span.name.startswith("gloo:") or span.name.startswith("nccl:") and span.category == "gpu_user_annotation"
        ]

    def moved(self, seconds: float) -> "Trace":
        """The same events, this many seconds later."""
        return replace(self, shift=self.shift + 1e6 * seconds)


@dataclass(frozen=True)
class Clock:
    """How many seconds a rank's clock is ahead of the first rank's: the estimate, and what it must lie between."""

    ahead: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """The most by which the estimate can be wrong."""
        return max(self.high - self.ahead, self.ahead - self.low)


def read_traces(paths) -> dict[int, Trace]:
    """rank -> trace, from the files that `export_chrome_trace` wrote, moved to one base time.

    Raises InputError for a file that is not such a trace, and for two files of one rank.
    """
    found = {}
    for path in map(Path, paths):
        try:
            raw = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_text())
            found.setdefault(raw["distributedInfo"]["rank"], []).append((raw["baseTimeNanoseconds"], raw))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} should be a trace that torch.profiler exported while a process group was there; "
                f"found no {error}."
            ) from error
    twice = [rank for rank, several in found.items() if len(several) > 1]
    if twice or not found:
        raise InputError(f"One trace per rank is needed; got {f'several of rank {twice[0]}' if twice else 'none'}.")
    zero = min(several[0][0] for several in found.values())
    return {rank: Trace(rank, raw["traceEvents"], (base - zero) / 1e3) for rank, [(base, raw)] in sorted(found.items())}


def matched(traces: Mapping[int, Trace]) -> list[dict[int, Span]]:
    """Each collective as {rank: its span there}, in order of time: the k-th of one name and shape is the same one."""
    by_kind = {rank: defaultdict(list) for rank in traces}
    for rank, trace in traces.items():
        for span in trace.messages:
            by_kind[rank][span.name, span.shape].append(span)
    first = min(traces)
    found = []
    for kind in by_kind[first]:
        several = [by_kind[rank][kind] for rank in traces]
        found += [dict(zip(traces, one, strict=True)) for one in zip(*several, strict=False)]
    return sorted(found, key=lambda one: one[first].start)


def clocks(traces: Mapping[int, Trace]) -> dict[int, Clock]:
    """Each rank's clock against that of the first rank, from the collectives that all ranks recorded.

    Raises InputError if there are none, or if they contradict each other: traces of different runs.
    """
    first, found = min(traces), {}
    meetings = [one for one in matched(traces) if any(kind in one[first].name for kind in MEETS)]
    if not meetings:
        raise InputError("The traces share no all-reduce or barrier, so nothing says how their clocks compare.")
    for rank in traces:
        low = max(one[rank].start - one[first].end for one in meetings)
        high = min(one[rank].end - one[first].start for one in meetings)
        if low > high:
            raise InputError(
                f"On no common clock do all ranks start each collective before rank {rank} ends it: are "
                "these traces of one run?"
            )
        ahead = median(one[rank].end - one[first].end for one in meetings)
        found[rank] = Clock(min(max(ahead, low), high), low, high) if rank != first else Clock(0.0, 0.0, 0.0)
    return found


def aligned(traces: Mapping[int, Trace], by: Mapping[int, Clock]) -> dict[int, Trace]:
    """The traces, each moved to the first rank's clock."""
    return {rank: trace.moved(-by[rank].ahead) for rank, trace in traces.items()}


def lateness(traces: Mapping[int, Trace], kind: str = "all_reduce") -> dict[int, float]:
    """Median seconds by which each rank starts such a collective after the first rank to start it; on one clock."""
    found = [one for one in matched(traces) if kind in one[min(traces)].name]
    if not found:
        raise InputError(f"The traces share no {kind}.")
    return {
        rank: median(one[rank].start - min(span.start for span in one.values()) for one in found) for rank in traces
    }


def transfers(traces: Mapping[int, Trace], kind: str = "all_reduce") -> list[float]:
    """Seconds of each such collective from its start on the last rank, when it can begin, to its last end."""
    found = [one.values() for one in matched(traces) if kind in one[min(traces)].name]
    return [max(span.end for span in spans) - max(span.start for span in spans) for spans in found]


def save_merged(traces: Mapping[int, Trace], path: Path | str) -> int:
    """Writes one gzipped trace for https://ui.perfetto.dev, with a process per rank; returns its number of events."""
    merged = []
    for rank, trace in traces.items():
        for event in trace.events:
            event = event | {"pid": rank}
            if event.get("ph") == "M" and event["name"] == "process_name":
                event["args"] = {"name": f"rank {rank}"}
            if event.get("ph") in ("s", "t", "f"):  # arrows: their numbers count per rank
                event["id"] = f"{rank}.{event.get('id')}"
            if "ts" in event:
                event["ts"] = float(event["ts"]) + trace.shift
            merged.append(event)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump({"traceEvents": merged, "displayTimeUnit": "ms"}, file)
    return len(merged)
