"""Where the time of a training step goes, read from one rank's trace.

The script names its parts with `record_function`: "step" around all of it; "input", "forward", "backward", "optimizer"
inside. From the trace come the messages, and when the training thread computed. A message is *exposed* while it
runs no operation: the step waits for it. What lies in no part is idle.
"""

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from ddp_course.base.errors import InputError
from ddp_course.lab.trace import Span, Trace

NAMED = ("input", "forward", "backward", "optimizer")
EXPOSED, IDLE = "exposed communication", "idle"
PARTS = ("input", "forward", "backward", EXPOSED, "optimizer", IDLE)
Intervals = list[tuple[float, float]]  # sorted, and none touches another


def union(intervals) -> Intervals:
    """The same times, each once."""
    found: Intervals = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif end > start:
            found.append((start, end))
    return found


def common(one: Intervals, other: Intervals) -> Intervals:
    """The times that lie in both."""
    pairs = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return [(start, end) for start, end in pairs if start < end]


def without(one: Intervals, other: Intervals) -> Intervals:
    """The times of `one` that do not lie in `other`."""
    found = []
    for start, end in one:
        for begin, stop in common([(start, end)], other):
            found.append((start, begin))
            start = stop
        found.append((start, end))
    return [(start, end) for start, end in found if start < end]


def seconds(intervals: Intervals) -> float:
    return sum(end - start for start, end in intervals)


def steps_of(trace: Trace) -> list[Span]:
    """The spans called "step". Raises InputError if there are none."""
    found = [span for span in trace.spans if span.name == "step" and span.category == "user_annotation"]
    if not found:
        raise InputError('The trace has no step: write `with record_function("step"):` around it.')
    return found


def fastest(traces: Mapping[int, Trace]) -> dict[int, Trace]:
    """The traces of one step alone: the one that was shortest on its slowest rank.

    An event belongs to the step in which it begins: on a busy machine gloo's thread may note a message's end late.
    """
    steps = list(zip(*(steps_of(trace) for trace in traces.values()), strict=True))
    best = min(steps, key=lambda ranks: max(step.end - step.start for step in ranks))
    found = {}
    for (rank, trace), step in zip(traces.items(), best, strict=True):
        low, high = 1e6 * step.start - trace.shift - 0.01, 1e6 * step.end - trace.shift + 0.01
        inside = [e for e in trace.events if e.get("ph") == "X" and low <= float(e["ts"]) <= high]
        found[rank] = replace(trace, events=inside)
    return found


def pieces(trace: Trace, step: Span) -> dict[str, Intervals]:
    """When each part of this step ran, and under "messages" when any message was under way."""
    window = [(step.start, step.end)]
    inside = [span for span in trace.spans if span.start < step.end and span.end > step.start]
    mine = [span for span in inside if span.thread == step.thread]
    work = union((span.start, span.end) for span in mine if span.category == "cpu_op")
    messages = common(union((span.start, span.end) for span in trace.messages), window)
    exposed = without(messages, work)
    found = {name: without(union((s.start, s.end) for s in mine if s.name == name), exposed) for name in NAMED}
    named = union([*exposed, *(one for several in found.values() for one in several)])
    return {**found, EXPOSED: exposed, IDLE: without(window, named), "messages": messages}


def shares(trace: Trace) -> dict[str, float]:
    """Seconds per step of each of `PARTS`, of all "messages", and of the whole "step": medians over the steps."""
    found = [pieces(trace, step) for step in steps_of(trace)]
    rows = [{part: seconds(times) for part, times in one.items()} for one in found]
    result = {part: median(row[part] for row in rows) for part in rows[0]}
    return result | {"step": median(step.end - step.start for step in steps_of(trace))}


def hidden(trace: Trace) -> float:
    """The share of its messages' time in which this rank computes."""
    times = shares(trace)
    if not times["messages"]:
        raise InputError(f"Rank {trace.rank}'s steps have no messages, so there is nothing to hide.")
    return 1 - times[EXPOSED] / times["messages"]


def lane(trace: Trace, step: Span) -> list[dict]:
    """The events of one step as `figures.rank_lanes` draws them: parts above, messages below, waiting hatched."""
    found = pieces(trace, step)
    events = [
        {"name": name, "kind": "compute", "start": start, "end": end} for name in NAMED for start, end in found[name]
    ]
    events += [{"name": "waits", "kind": "idle", "start": start, "end": end} for start, end in found[EXPOSED]]
    sent = [span for span in trace.messages if step.start <= span.start < step.end]
    latest = step.start
    for number, span in enumerate(sorted(sent, key=lambda span: span.end)):
        start = max(span.start, latest)  # drawn when the link turns to it, if the one before is still under way
        latest = span.end
        events.append({"name": f"{number}", "kind": "communication", "start": start, "end": span.end})
    return events
