"""Pages that show one idea and have no command: the text and the pictures of each. Pyodide runs it."""

from argparse import Namespace

import sampler_table
from pictures import gigabytes, gpus, row

from ddp_course.base.errors import InputError
from ddp_course.base.parser import Parser
from ddp_course.lab import ring_order
from ddp_course.lab.pipeline_order import SCHEDULES, most_in_flight, order_bubble, schedule
from ddp_course.plan.derived import model_from
from ddp_course.plan.flags import check_counts
from ddp_course.plan.memory import Layout, memory


def zero(flags: Namespace) -> dict:
    """The memory under DDP and ZeRO-1, 2, 3, of plan's --params on its --gpus."""
    if not flags.params or not flags.gpus:
        raise InputError("this page needs --params and --gpus, such as 7e9 and 8")
    check_counts(flags, "gpus")
    model, _ = model_from(flags)
    rows = []
    for level, title in enumerate(("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")):
        axes = {"shard": flags.gpus, "zero": level} if level else {"dp": flags.gpus}
        parts = vars(memory(model, Layout(**axes), 1, flags.precision))
        del parts["activations"]
        rows.append(row(title, gigabytes(sum(parts.values())), parts, gigabytes))
    picture = {"title": f"Memory of each of {gpus(flags.gpus)}, without activations", "rows": rows}
    text = "\n".join(f"{row['name']:8} {row['label']:>9}" for row in rows)
    return {"text": text, "pictures": [picture]}


def pipeline_parser() -> Parser:
    parser = Parser(prog="pipeline")
    parser.add_argument("--stages", type=int, required=True, help="one per rank")
    parser.add_argument("--micro-batches", type=int, required=True, help="of a step")
    parser.add_argument("--schedule", default="1f1b", choices=SCHEDULES, help="(%(default)s)")
    return parser


def pipeline(flags: Namespace) -> dict:
    stages, count = flags.stages, flags.micro_batches
    ranks = schedule(flags.schedule, stages, count)
    lanes = [{"name": f"rank {rank}", "events": _numbered(events)} for rank, events in enumerate(ranks)]
    end, bubble = max(events[-1]["end"] for events in ranks), order_bubble(ranks)
    title = f"{flags.schedule}, {stages} stages, {count} micro-batches: {bubble:.0%} of the time is bubble"
    picture = {"title": title, "parts": ["forward", "backward"], "lanes": lanes, "end": end, "label": ""}
    kept = ", ".join(str(most_in_flight(events)) for events in ranks)
    text = (
        f"bubble: {bubble:.1%} of the time; (p - 1) / (m + p - 1) = {(stages - 1) / (count + stages - 1):.1%}\n"
        f"micro-batches whose activations a rank keeps at most, rank 0 first: {kept}"
    )
    return {"text": text, "pictures": [picture]}


def _numbered(events: list[dict]) -> list[dict]:
    return [{**event, "part": event["kind"], "text": str(event["number"] + 1)} for event in events]


def ring_parser() -> Parser:
    parser = Parser(prog="ring")
    parser.add_argument("--ranks", type=int, required=True, help="as many chunks per rank")
    parser.add_argument("--step", type=int, required=True, help="done so far")
    return parser


def ring(flags: Namespace) -> dict:
    """The chunks of all ranks after --step steps. A step past the last one shows the end."""
    ranks, states = flags.ranks, ring_order.ring_states(flags.ranks)
    last = len(states) - 1
    if flags.step < 0:
        raise InputError(f"--step is from 0 to {last} with {ranks} ranks, got {flags.step}")
    step = min(flags.step, last)
    rows = []
    for rank, chunks in enumerate(states[step]):
        sent = ring_order.sent_chunk(rank, step, ranks) if step < last else None
        label = "" if sent is None else f"sends chunk {sent} to rank {(rank + 1) % ranks}"
        cells = [
            {"parts": [f"rank {other}" if other in summed else "" for other in range(ranks)], "framed": chunk == sent}
            for chunk, summed in enumerate(chunks)
        ]
        rows.append({"name": f"rank {rank}", "label": label, "cells": cells})
    titles = ["reduce-scatter: the receiver adds"] * (ranks - 1) + ["all-gather: the receiver replaces"] * (ranks - 1)
    title = [*titles, "the end: each rank has the whole sum"][step]
    complete = [sum(len(summed) == ranks for summed in chunks) for chunks in states[step]]
    picture = {"title": title, "parts": [f"rank {rank}" for rank in range(ranks)], "grid": rows}
    text = (
        f"{step} of {last} steps done\n"
        f"sent by each rank: {step / ranks:.2f} times its tensor, in the end {last / ranks:.2f} times\n"
        f"chunks summed over all ranks, rank 0 first: {', '.join(map(str, complete))}"
    )
    return {"text": text, "pictures": [picture], "last": {"--step": last}}


SETTINGS = {"samples": sampler_table.SAMPLES, "ranks": sampler_table.RANKS, "epoch": sampler_table.EPOCHS}


def sampler_parser() -> Parser:
    parser = Parser(prog="sampler")
    parser.add_argument("--samples", type=int, required=True, help="of the data set")
    parser.add_argument("--ranks", type=int, required=True, help="the world size")
    parser.add_argument("--epoch", type=int, required=True, help="the first one is 0")
    parser.add_argument("--no-set-epoch", action="store_true", help="the script never calls set_epoch")
    parser.add_argument("--no-shuffle", action="store_true", help="shuffle=False")
    parser.add_argument("--drop-last", action="store_true", help="drop_last=True")
    return parser


def sampler(flags: Namespace) -> dict:
    """Which rank reads which sample under DistributedSampler, as recorded when the site was built."""
    for name, values in SETTINGS.items():
        value = getattr(flags, name)
        if value not in values:
            raise InputError(f"this page knows --{name} {', '.join(map(str, values))}, got {value}")

    def shares_in(epoch: int) -> list[list[int]]:
        key = sampler_table.key(flags.samples, flags.ranks, epoch, not flags.no_shuffle, flags.drop_last)
        return sampler_table.shares_by_setting()[key]

    shares = shares_in(0 if flags.no_set_epoch else flags.epoch)
    repeated = " (those of epoch 0 again)" if flags.epoch and shares == shares_in(0) else ""
    readers = {
        sample: [rank for rank, share in enumerate(shares) if sample in share] for sample in range(flags.samples)
    }
    rows = [
        {"name": f"rank {rank}", "label": f"{len(share)} samples", "cells": _cells(share, rank, flags)}
        for rank, share in enumerate(shares)
    ]
    cells = [
        {"parts": [f"rank {rank}" for rank in ranks] or [""], "text": str(sample), "framed": len(ranks) > 1}
        for sample, ranks in readers.items()
    ]
    parts = [f"rank {rank}" for rank in range(flags.ranks)]
    pictures = [
        {"title": f"Epoch {flags.epoch}: the samples of each rank{repeated}", "parts": parts, "grid": rows},
        {"title": "The ranks that read a sample", "parts": parts, "grid": [{"name": "", "label": "", "cells": cells}]},
    ]
    twice = [str(sample) for sample, ranks in readers.items() if len(ranks) > 1]
    never = [str(sample) for sample, ranks in readers.items() if not ranks]
    text = f"read twice: {', '.join(twice) or 'none'}\nread by no rank: {', '.join(never) or 'none'}"
    return {"text": text, "pictures": pictures}


def _cells(share: list[int], rank: int, flags: Namespace) -> list[dict]:
    """A cell for each sample of a rank, framed where the sampler repeats samples to make all shares equal."""
    positions = range(rank, flags.ranks * len(share), flags.ranks)
    return [
        {"parts": [f"rank {rank}"], "text": str(sample), "framed": position >= flags.samples}
        for position, sample in zip(positions, share, strict=True)
    ]
