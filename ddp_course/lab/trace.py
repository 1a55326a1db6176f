"""Read the traces that torch.profiler writes on every rank, align their clocks, and merge them for Perfetto.

Each rank stamps its events by its own clock, and clocks of different machines disagree. No rank can end an all-reduce
before every rank has started it, so each all-reduce bounds the offset of two clocks. Its ends nearly coincide on all
ranks, so the difference of its end times estimates the offset.
"""

import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median

from ddp_course.base.errors import InputError, type_and_text

# Collectives that end only after all ranks have started.
SYNCHRONISING = "all_reduce", "barrier", "all_gather", "reduce_scatter"


@dataclass(frozen=True)
class Span:
    """An event with a duration, in seconds on the clock of its trace. `shape`: the input shapes from the profiler."""

    name: str
    category: str
    thread: int | str
    start: float
    end: float
    shape: str = ""


@dataclass(frozen=True)
class Trace:
    """The trace of one rank: events in Chrome's format, and the microseconds to add to each time stamp."""

    rank: int
    events: list[dict]
    shift: float = 0.0

    @cached_property
    def spans(self) -> list[Span]:
        spans = [
            Span(
                event["name"],
                event.get("cat", ""),
                event["tid"],
                (float(event["ts"]) + self.shift) / 1e6,
                (float(event["ts"]) + event["dur"] + self.shift) / 1e6,
                str(event.get("args", {}).get("Input Dims", "")),
            )
            for event in self.events
            if event.get("ph") == "X"
        ]
        return sorted(spans, key=lambda span: span.start)

    @property
    def messages(self) -> list[Span]:
        """The spans of the collectives as the backend ran them: on gloo's threads, or on NCCL's stream of the GPU.

        With NCCL, spans of the same names on the CPU end when the kernels are queued; they are left out.
        """
        return [
            span
            for span in self.spans
            if span.name.startswith("gloo:")
            or (span.name.startswith("nccl:") and span.category == "gpu_user_annotation")
        ]

    def moved(self, seconds: float) -> "Trace":
        """The same events, this many seconds later."""
        return replace(self, shift=self.shift + 1e6 * seconds)


@dataclass(frozen=True)
class Clock:
    """How far a rank's clock is ahead of the first rank's, in seconds: the estimate and its bounds."""

    ahead: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """The largest possible error of the estimate, in seconds."""
        return max(self.high - self.ahead, self.ahead - self.low)


def read_traces(paths: Iterable[Path | str]) -> dict[int, Trace]:
    """Read files that `export_chrome_trace` wrote as {rank: trace}, sorted by rank and shifted to one base time.

    Raises InputError for a file that is not such a trace, and for two files of one rank.
    """
    events, base_times = {}, {}  # by rank; the base times in nanoseconds
    for path in map(Path, paths):
        try:
            trace = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_text())
            rank, base_time = trace["distributedInfo"]["rank"], trace["baseTimeNanoseconds"]
            trace_events = trace["traceEvents"]
        except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} should be a trace that torch.profiler exported while a process group was there; "
                f"found {type_and_text(error)}."
            ) from error
        if rank in events:
            raise InputError(f"One trace per rank is needed; got several of rank {rank}.")
        events[rank], base_times[rank] = trace_events, base_time
    if not events:
        raise InputError("One trace per rank is needed; got none.")
    first = min(base_times.values())
    return {rank: Trace(rank, events[rank], (base_times[rank] - first) / 1e3) for rank in sorted(events)}


def matched(traces: Mapping[int, Trace], kind: str = "") -> list[dict[int, Span]]:
    """{rank: span} of each collective that all ranks recorded, sorted by its start on the first rank.

    kind: a part of the collective's name, such as "all_reduce"; default: all of them.
    The k-th span with a name and an input shape is taken for the same collective on all ranks.
    """
    spans_of = {rank: defaultdict(list) for rank in traces}
    for rank, trace in traces.items():
        for span in trace.messages:
            if kind in span.name:
                spans_of[rank][span.name, span.shape].append(span)
    first = min(traces)
    collectives = []
    for name_and_shape in spans_of[first]:
        spans_by_rank = [spans_of[rank][name_and_shape] for rank in traces]
        collectives += [dict(zip(traces, spans, strict=True)) for spans in zip(*spans_by_rank, strict=False)]
    return sorted(collectives, key=lambda spans: spans[first].start)


def clocks(traces: Mapping[int, Trace]) -> dict[int, Clock]:
    """Estimate the offset of each rank's clock from the first rank's, from the collectives that all ranks recorded.

    Raises InputError if there are none, or if they contradict each other: traces of different runs.
    """
    first, clock_of_rank = min(traces), {}
    synchronising = [spans for spans in matched(traces) if any(kind in spans[first].name for kind in SYNCHRONISING)]
    if not synchronising:
        raise InputError("The traces share no all-reduce or barrier, so nothing says how their clocks compare.")
    for rank in traces:
        low = max(spans[rank].start - spans[first].end for spans in synchronising)
        high = min(spans[rank].end - spans[first].start for spans in synchronising)
        if low > high:
            raise InputError(
                f"On no common clock do all ranks start each collective before rank {rank} ends it: are "
                "these traces of one run?"
            )
        ahead = median(spans[rank].end - spans[first].end for spans in synchronising)
        clock_of_rank[rank] = Clock(min(max(ahead, low), high), low, high) if rank != first else Clock(0.0, 0.0, 0.0)
    return clock_of_rank


def aligned(traces: Mapping[int, Trace], clock_of_rank: Mapping[int, Clock]) -> dict[int, Trace]:
    """Shift the traces to the first rank's clock."""
    return {rank: trace.moved(-clock_of_rank[rank].ahead) for rank, trace in traces.items()}


def lateness(traces: Mapping[int, Trace]) -> dict[int, float]:
    """{rank: median seconds from the first start of an all-reduce on any rank to its start on this one}.

    The traces must be on one clock: see `aligned`. Raises InputError if they share no all-reduce.
    """
    collectives = matched(traces, "all_reduce")
    if not collectives:
        raise InputError("The traces share no all-reduce.")
    return {
        rank: median(spans[rank].start - min(span.start for span in spans.values()) for spans in collectives)
        for rank in traces
    }


def transfers(traces: Mapping[int, Trace]) -> list[float]:
    """Seconds of each all-reduce from its last start on any rank, when data can move, to its last end.

    The traces must be on one clock: see `aligned`.
    """
    collectives = [spans.values() for spans in matched(traces, "all_reduce")]
    return [max(span.end for span in spans) - max(span.start for span in spans) for spans in collectives]


def save_merged(traces: Mapping[int, Trace], path: Path | str) -> int:
    """Write one gzipped trace for https://ui.perfetto.dev, with a process per rank; returns its number of events."""
    merged = []
    for rank, trace in traces.items():
        for event in trace.events:
            event = event | {"pid": rank}
            if event.get("ph") == "M" and event["name"] == "process_name":
                event["args"] = {"name": f"rank {rank}"}
            if event.get("ph") in ("s", "t", "f"):  # arrows, whose ids are unique only within a rank
                event["id"] = f"{rank}.{event.get('id')}"
            if "ts" in event:
                event["ts"] = float(event["ts"]) + trace.shift
            merged.append(event)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump({"traceEvents": merged, "displayTimeUnit": "ms"}, file)
    return len(merged)
