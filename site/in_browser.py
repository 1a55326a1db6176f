"""The commands in a web page: what each prints, and the numbers of its pictures. Pyodide runs it."""

import json
from argparse import Namespace

from answers import answered, gigabytes, gpus, printed, row
from bucket_queue import buckets
from ddp_doctor.explain import explain_logs, page
from ddp_doctor.explain.log_lines import Log
from teaching import pipeline, ring, sampler, zero

from ddp_course.plan.__main__ import report_and_plans
from ddp_course.plan.ddp_step import DDP
from ddp_course.plan.flags import plan_parser, predict_parser
from ddp_course.plan.job import USABLE, Job
from ddp_course.plan.memory import STATE
from ddp_course.plan.prediction_report import ddp_from, gpu_counts, prediction_report
from ddp_course.plan.report import SHOWN, format_seconds, memory_range, name
from ddp_course.plan.schedule import SimulatedStep
from ddp_course.plan.search import Plan, SearchResult


def answer(command: str, *arguments) -> str:
    """JSON: the text that the command prints, and its pictures."""
    return json.dumps(COMMANDS[command](*arguments))


def plan(arguments: list[str]) -> dict:
    def report(flags: Namespace) -> tuple[str, dict]:
        text, job, result = report_and_plans(flags)
        return text, {"pictures": _plan_pictures(job, result) if result else []}

    return answered(plan_parser(), report, arguments)


def _plan_pictures(job: Job, result: SearchResult) -> list[dict]:
    plans = result.distinct()[:SHOWN] or [plan for plan in [result.smallest] if plan]
    memory = [row(name(plan), f"{memory_range(plan)} GB", vars(plan.memory), gigabytes) for plan in plans]
    limit = {"value": job.limit, "label": f"{USABLE:.0%} of the memory: {gigabytes(job.limit)}"}
    pictures = [{"title": "Memory of a GPU", "rows": memory, "limit": limit}]
    if result.fits:
        steps = [row(name(plan), format_seconds(plan.step.total), _plan_step(plan), format_seconds) for plan in plans]
        pictures.append({"title": "Seconds of a step", "rows": steps})
    return [picture for picture in pictures if picture["rows"]]


def _plan_step(plan: Plan) -> dict[str, float]:
    step = plan.step
    bubble = step.computing * step.bubble
    return {"computing": step.computing, "bubble": bubble, "waiting": step.waiting, "optimizer's step": step.updating}


def predict(arguments: list[str]) -> dict:
    def report(flags: Namespace) -> tuple[str, dict]:
        return prediction_report(flags), {"pictures": _predict_pictures(ddp_from(flags))}

    return answered(predict_parser(), report, arguments)


def _predict_pictures(ddp: DDP) -> list[dict]:
    steps = {count: ddp.on(count).step(ddp.middle) for count in gpu_counts(ddp)}
    rows = [
        row(gpus(count), format_seconds(step.seconds), _ddp_step(step), format_seconds) for count, step in steps.items()
    ]
    last = steps[ddp.gpus]
    computes = [{**event, "part": event["name"]} for event in last.events if event["kind"] == "compute"]
    sends = [{**event, "part": "message"} for event in last.events if event["kind"] == "communication"]
    lanes = [{"name": "computes", "events": computes}, {"name": "sends", "events": sends}]
    model, gpu = ddp.job.model, ddp.job.cluster.gpu
    state = zip(("weights", "gradients", "optimizer"), STATE["fp32"], strict=True)
    state_bytes = {part: size * model.parameters for part, size in state}
    limit = {"value": gpu.memory, "label": f"the GPU's memory: {gigabytes(gpu.memory)}"}
    return [
        {"title": "Seconds of a step, by the middle of what is assumed", "rows": rows},
        {
            "title": f"One step of {gpus(ddp.gpus)}",
            "parts": ["forward", "backward", "message", "optimizer"],
            "lanes": lanes,
            "end": last.seconds,
            "label": format_seconds(last.seconds),
        },
        {
            "title": "Memory of a GPU, without activations",
            "rows": [row("DDP", gigabytes(sum(state_bytes.values())), state_bytes, gigabytes)],
            "limit": limit,
        },
    ]


def _ddp_step(step: SimulatedStep) -> dict[str, float]:
    length = {event["name"]: 0.0 for event in step.events}
    for event in step.events:
        length[event["name"]] += event["end"] - event["start"]
    parts = {"forward": "forward", "backward": "backward", "wait": "waiting", "optimizer": "optimizer's step"}
    return {part: length.get(name, 0.0) for name, part in parts.items()}


def explain(log: bytes, name: str) -> dict:
    """name: of a file; "" for what was pasted."""
    text = printed(lambda: print(page(*explain_logs([Log(bytes(log).decode(errors="replace"), name)]))))
    return {"text": text, "pictures": []}


COMMANDS = {
    "plan": plan,
    "predict": predict,
    "explain": explain,
    "zero": zero,
    "pipeline": pipeline,
    "ring": ring,
    "sampler": sampler,
    "buckets": buckets,
}
