"""The pages that compute: the text and the pictures for what a form says. Pyodide runs it."""

import json
from argparse import Namespace

from bucket_queue import buckets
from ddp_doctor.explain import explain_logs, page
from ddp_doctor.explain.log_lines import Log
from pictures import gigabytes, gpus, row
from teaching import pipeline, pipeline_parser, ring, ring_parser, sampler, sampler_parser, zero

from ddp_course.base.errors import InputError, in_one_line
from ddp_course.plan.__main__ import report_and_plans
from ddp_course.plan.ddp_step import DDP
from ddp_course.plan.flags import plan_parser, predict_parser
from ddp_course.plan.job import USABLE, Job
from ddp_course.plan.memory import STATE
from ddp_course.plan.prediction_report import ddp_from, gpu_counts, prediction_report
from ddp_course.plan.report import SHOWN, format_seconds, memory_range
from ddp_course.plan.report import name as mesh_name
from ddp_course.plan.schedule import SimulatedStep
from ddp_course.plan.search import Plan, SearchResult


def answer(name: str, *arguments) -> str:
    """JSON of what a page shows. arguments: those of `calculate`, or for the page "explain" those of `explain`."""
    return json.dumps(explain(*arguments) if name == "explain" else calculate(name, *arguments))


def calculate(name: str, words: list[str]) -> dict:
    """The "text" that the page's command prints for these words, its "pictures", and what else the page needs.

    Wrong flags give the sentence of the error, and no picture.
    """
    parser, report = PAGES[name]
    try:
        shown = report(parser().parse_args(words))
    except InputError as error:
        shown = {"text": f"error: {in_one_line(error)}", "pictures": []}
    return {**shown, "text": f"{shown['text']}\n"}


def plan(flags: Namespace) -> dict:
    text, job, result = report_and_plans(flags)
    return {"text": text, "pictures": _plan_pictures(job, result) if result else []}


def _plan_pictures(job: Job, result: SearchResult) -> list[dict]:
    plans = result.distinct()[:SHOWN] or [plan for plan in [result.smallest] if plan]
    memory = [row(mesh_name(plan), f"{memory_range(plan)} GB", vars(plan.memory), gigabytes) for plan in plans]
    limit = {"value": job.limit, "label": f"{USABLE:.0%} of the memory: {gigabytes(job.limit)}"}
    pictures = [{"title": "Memory of a GPU", "rows": memory, "limit": limit}]
    if result.fits:
        steps = [
            row(mesh_name(plan), format_seconds(plan.step.total), _plan_step(plan), format_seconds) for plan in plans
        ]
        pictures.append({"title": "Seconds of a step", "rows": steps})
    return [picture for picture in pictures if picture["rows"]]


def _plan_step(plan: Plan) -> dict[str, float]:
    step = plan.step
    bubble = step.computing * step.bubble
    return {"computing": step.computing, "bubble": bubble, "waiting": step.waiting, "optimizer's step": step.updating}


def predict(flags: Namespace) -> dict:
    return {"text": prediction_report(flags), "pictures": _predict_pictures(ddp_from(flags))}


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
    parts = {"forward": "forward", "backward": "backward", "wait": "waiting", "optimizer": "optimizer's step"}
    return {
        part: sum(event["end"] - event["start"] for event in step.events if event["name"] == name)
        for name, part in parts.items()
    }


def explain(log: bytes, name: str) -> dict:
    """The output of `ddp_doctor explain` for a log. name: of its file, "" if it was pasted."""
    text = page(*explain_logs([Log(bytes(log).decode(errors="replace"), name)]))
    return {"text": f"{text}\n", "pictures": []}


PAGES = {  # page -> (the parser of its flags, the function that computes what it shows)
    "plan": (plan_parser, plan),
    "predict": (predict_parser, predict),
    "zero": (plan_parser, zero),
    "pipeline": (pipeline_parser, pipeline),
    "buckets": (predict_parser, buckets),
    "ring": (ring_parser, ring),
    "sampler": (sampler_parser, sampler),
}
