"""Compute from one rank's trace how the time of a training step is divided.

The script names its parts with `record_function`: "step" around the whole step; "input", "forward", "backward" and
"optimizer" inside. The trace adds the messages and the operations of the training thread. Communication is *exposed*
while the thread runs no operation: the step waits for it. Time in no part, and not exposed, is idle.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import median

from ddp_course.base.errors import InputError
from ddp_course.lab.trace import Span, Trace

NAMED = ("input", "forward", "backward", "optimizer")
EXPOSED, IDLE = "exposed communication", "idle"
PARTS = ("input", "forward", "backward", EXPOSED, "optimizer", IDLE)
Intervals = list[tuple[float, float]]  # sorted and disjoint


def union(intervals: Iterable[tuple[float, float]]) -> Intervals:
    """The times in any of the intervals: sorted, and merged where they overlap or touch."""
    merged: Intervals = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        elif end > start:
            merged.append((start, end))
    return merged


def intersection(first: Intervals, second: Intervals) -> Intervals:
    """The times that lie in both sets of intervals."""
    pairs = ((max(a, c), min(b, d)) for a, b in first for c, d in second)
    return [(start, end) for start, end in pairs if start < end]


def difference(first: Intervals, second: Intervals) -> Intervals:
    """The times of `first` that do not lie in `second`."""
    remaining = []
    for start, end in first:
        for begin, stop in intersection([(start, end)], second):
            remaining.append((start, begin))
            start = stop
        remaining.append((start, end))
    return [(start, end) for start, end in remaining if start < end]


def seconds(intervals: Intervals) -> float:
    """The total length of the intervals."""
    return sum(end - start for start, end in intervals)


def steps_of(trace: Trace) -> list[Span]:
    """The spans called "step". Raises InputError if there are none."""
    steps = [span for span in trace.spans if span.name == "step" and span.category == "user_annotation"]
    if not steps:
        raise InputError('The trace has no step: write `with record_function("step"):` around it.')
    return steps


def fastest(traces: Mapping[int, Trace]) -> dict[int, Trace]:
    """Cut the traces to one step: the one with the shortest time on its slowest rank.

    An event belongs to the step in which it begins, because on a busy machine gloo's thread may record its end late.
    """
    steps = list(zip(*(steps_of(trace) for trace in traces.values()), strict=True))
    best = min(steps, key=lambda ranks: max(step.end - step.start for step in ranks))
    fastest_step = {}
    for (rank, trace), step in zip(traces.items(), best, strict=True):
        # In the trace's own microseconds, with room for rounding.
        low, high = 1e6 * step.start - trace.shift - 0.01, 1e6 * step.end - trace.shift + 0.01
        inside = [e for e in trace.events if e.get("ph") == "X" and low <= float(e["ts"]) <= high]
        fastest_step[rank] = replace(trace, events=inside)
    return fastest_step


def part_intervals(trace: Trace, step: Span) -> dict[str, Intervals]:
    """The intervals of each of `PARTS` in this step, and of its "messages"."""
    window = [(step.start, step.end)]
    inside = [span for span in trace.spans if span.start < step.end and span.end > step.start]
    thread_spans = [span for span in inside if span.thread == step.thread]
    operations = union((span.start, span.end) for span in thread_spans if span.category == "cpu_op")
    messages = intersection(union((span.start, span.end) for span in trace.messages), window)
    exposed = difference(messages, operations)
    intervals = {
        name: difference(union((span.start, span.end) for span in thread_spans if span.name == name), exposed)
        for name in NAMED
    }
    named = union([*exposed, *(interval for part in intervals.values() for interval in part)])
    return {**intervals, EXPOSED: exposed, IDLE: difference(window, named), "messages": messages}


def part_seconds(trace: Trace) -> dict[str, float]:
    """Seconds per step of each of `PARTS`, of all "messages", and of the whole "step": medians over the steps."""
    steps = [part_intervals(trace, step) for step in steps_of(trace)]
    rows = [{part: seconds(intervals) for part, intervals in parts.items()} for parts in steps]
    result = {part: median(row[part] for row in rows) for part in rows[0]}
    return result | {"step": median(step.end - step.start for step in steps_of(trace))}


def hidden_share(trace: Trace) -> float:
    """The share of this rank's communication time that overlaps with computation.

    Raises InputError if its steps have no communication.
    """
    times = part_seconds(trace)
    if not times["messages"]:
        raise InputError(f"Rank {trace.rank}'s steps have no messages, so there is nothing to hide.")
    return 1 - times[EXPOSED] / times["messages"]


def lane(trace: Trace, step: Span) -> list[dict]:
    """The events of one step for `figures.rank_lanes`: its parts, its messages by number, and the waits for them."""
    intervals = part_intervals(trace, step)
    events = [
        {"name": name, "kind": "compute", "start": start, "end": end}
        for name in NAMED
        for start, end in intervals[name]
    ]
    events += [{"name": "waits", "kind": "idle", "start": start, "end": end} for start, end in intervals[EXPOSED]]
    messages = [span for span in trace.messages if step.start <= span.start < step.end]
    previous_end = step.start
    for number, span in enumerate(sorted(messages, key=lambda span: span.end)):
        start = max(span.start, previous_end)  # the previous message used the link until then
        previous_end = span.end
        events.append({"name": f"{number}", "kind": "communication", "start": start, "end": span.end})
    return events
