"""The page of DDP's buckets: one step of predict's schedule, and the same step with other bucket sizes."""

from argparse import Namespace
from dataclasses import replace

from pictures import gpus, row

from ddp_course.plan.prediction_report import ddp_from
from ddp_course.plan.report import format_seconds
from ddp_course.plan.schedule import BUCKET, MIB, SimulatedStep

SIZES = 1, 5, 25, 100, 500  # MiB
PARTS = ["forward", "gradients of a bucket", "full buckets that wait for the link", "on the link", "optimizer"]


def buckets(flags: Namespace) -> dict:
    ddp = ddp_from(flags)
    step = ddp.step(ddp.middle)
    sent = [event for event in step.events if event["kind"] == "communication"]
    sizes = {f"{size} MiB": size for size in SIZES if ddp.least_bucket_mib <= size < ddp.gradient_mib}
    sizes["all in one"] = ddp.gradient_mib
    steps = {name: replace(ddp, bucket_mib=size).step(ddp.middle) for name, size in sizes.items()}
    rows = [row(name, format_seconds(other.seconds), _parts(other), format_seconds) for name, other in steps.items()]
    pictures = [
        {
            "title": f"One step of {gpus(ddp.gpus)}",
            "parts": PARTS,
            "lanes": _lanes(step, sent),
            "end": step.seconds,
            "label": format_seconds(step.seconds),
        },
        {"title": "Seconds of a step by the size of a bucket", "rows": rows},
    ]
    text = (
        f"step: {format_seconds(step.seconds)}\n"
        f"of which the GPU waits for messages: {format_seconds(step.exposed)}\n"
        f"messages: {len(sent)}, of {ddp.gradient_mib:,.0f} MiB together"
    )
    if ddp.least_bucket_mib > (ddp.bucket_mib or BUCKET / MIB):
        text += f"\nsmaller buckets than {ddp.least_bucket_mib:.0f} MiB: simulated several together"
    return {"text": text, "pictures": pictures}


def _parts(step: SimulatedStep) -> dict[str, float]:
    return {"computing": step.seconds - step.exposed, "waiting for messages": step.exposed}


def _lanes(step: SimulatedStep, sent: list[dict]) -> list[dict]:
    computed = {event["name"]: event for event in step.events if event["kind"] == "compute"}
    backward = [{**event, "part": PARTS[1]} for event in backward_by_bucket(step)]
    ends = [{**computed[name], "part": name} for name in ("forward", "optimizer")]
    link = [{**event, "part": PARTS[3], "text": event["name"]} for event in sent]
    return [
        {"name": "computes", "events": [*ends, *backward]},
        {"name": "full buckets that wait", "events": _queue(sent)},
        {"name": "on the link", "events": link},
    ]


def backward_by_bucket(step: SimulatedStep) -> list[dict]:
    """The event of backward, split where a bucket is full; "text" is the bucket's number. One GPU has no buckets."""
    [backward] = [event for event in step.events if event["name"] == "backward"]
    sent = [event for event in step.events if event["kind"] == "communication"]
    full = [backward["start"], *(event["ready"] for event in sent)]
    parts = [
        {"start": start, "end": event["ready"], "text": event["name"]} for start, event in zip(full, sent, strict=False)
    ]
    return parts or [{**backward, "text": ""}]


def _queue(sent: list[dict]) -> list[dict]:
    """An event for each time in which the number of waiting buckets stays the same and is not 0."""
    times = sorted({event[key] for event in sent for key in ("ready", "start")})
    counts = [sum(event["ready"] <= time < event["start"] for event in sent) for time in times]
    return [
        {"part": PARTS[2], "text": str(count), "start": start, "end": end}
        for count, start, end in zip(counts, times, times[1:], strict=False)
        if count
    ]
