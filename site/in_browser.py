"""The commands in a web page: what each prints, and the numbers of its pictures. Pyodide runs it."""

import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout

from ddp_doctor.explain import explain_logs, page
from ddp_doctor.explain.log_lines import Log

from ddp_course.base.errors import InputError
from ddp_course.base.parser import Parser
from ddp_course.base.quantity import with_prefix
from ddp_course.lab.pipeline_order import SCHEDULES, most_in_flight, order_bubble, schedule
from ddp_course.plan.__main__ import report_and_plans
from ddp_course.plan.ddp_step import DDP
from ddp_course.plan.derived import model_from
from ddp_course.plan.flags import check_counts, plan_parser, predict_parser, print_report
from ddp_course.plan.job import USABLE, Job
from ddp_course.plan.memory import STATE, Layout, memory
from ddp_course.plan.prediction_report import ddp_from, gpu_counts, prediction_report
from ddp_course.plan.report import SHOWN, format_seconds, memory_range, name
from ddp_course.plan.schedule import Step
from ddp_course.plan.search import Plan, SearchResult


def answer(command: str, *arguments) -> str:
    """JSON: the text that the command prints, and its pictures."""
    return json.dumps(COMMANDS[command](*arguments))


def plan(arguments: list[str]) -> dict:
    pictures = []

    def report(flags) -> str:
        text, job, result = report_and_plans(flags)
        if result:
            pictures.extend(_plan_pictures(job, result))
        return text

    return {"text": _printed(lambda: print_report(plan_parser(), report, arguments)), "pictures": pictures}


def _plan_pictures(job: Job, result: SearchResult) -> list[dict]:
    plans = result.distinct()[:SHOWN] or [plan for plan in [result.nearest] if plan]
    held = [_row(name(plan), f"{memory_range(plan)} GB", vars(plan.memory), _gigabytes) for plan in plans]
    limit = {"value": job.limit, "label": f"{USABLE:.0%} of the memory: {_gigabytes(job.limit)}"}
    pictures = [{"title": "Memory of a GPU", "rows": held, "limit": limit}]
    if result.fits:
        steps = [_row(name(plan), format_seconds(plan.step.total), _plan_step(plan), format_seconds) for plan in plans]
        pictures.append({"title": "Seconds of a step", "rows": steps})
    return [picture for picture in pictures if picture["rows"]]


def _plan_step(plan: Plan) -> dict[str, float]:
    step = plan.step
    bubble = step.computing * step.bubble
    return {"computing": step.computing, "bubble": bubble, "waiting": step.waiting, "optimizer's step": step.updating}


def predict(arguments: list[str]) -> dict:
    pictures = []

    def report(flags) -> str:
        text = prediction_report(flags)
        pictures.extend(_predict_pictures(ddp_from(flags)))
        return text

    return {"text": _printed(lambda: print_report(predict_parser(), report, arguments)), "pictures": pictures}


def _predict_pictures(ddp: DDP) -> list[dict]:
    known = {name: unknown.middle for name, unknown in ddp.ranges.items()}
    steps = {count: ddp.on(count).step(known) for count in gpu_counts(ddp)}
    rows = [
        _row(_gpus(count), format_seconds(step.seconds), _ddp_step(step), format_seconds)
        for count, step in steps.items()
    ]
    last = steps[ddp.gpus]
    computes = [{**event, "part": event["name"]} for event in last.events if event["kind"] == "compute"]
    sends = [{**event, "part": "message"} for event in last.events if event["kind"] == "communication"]
    lanes = [{"name": "computes", "events": computes}, {"name": "sends", "events": sends}]
    model, gpu = ddp.job.model, ddp.job.cluster.gpu
    state = zip(("weights", "gradients", "optimizer"), STATE["fp32"], strict=True)
    held = {part: size * model.parameters for part, size in state}
    limit = {"value": gpu.memory, "label": f"the GPU's memory: {_gigabytes(gpu.memory)}"}
    return [
        {"title": "Seconds of a step, by the middle of what is assumed", "rows": rows},
        {
            "title": f"One step of {_gpus(ddp.gpus)}",
            "parts": ["forward", "backward", "message", "optimizer"],
            "lanes": lanes,
            "end": last.seconds,
            "label": format_seconds(last.seconds),
        },
        {
            "title": "Memory of a GPU, without activations",
            "rows": [_row("DDP", _gigabytes(sum(held.values())), held, _gigabytes)],
            "limit": limit,
        },
    ]


def _ddp_step(step: Step) -> dict[str, float]:
    length = {event["name"]: 0.0 for event in step.events}
    for event in step.events:
        length[event["name"]] += event["end"] - event["start"]
    parts = {"forward": "forward", "backward": "backward", "wait": "waiting", "optimizer": "optimizer's step"}
    return {part: length.get(name, 0.0) for name, part in parts.items()}


def zero(arguments: list[str]) -> dict:
    """The memory under DDP and ZeRO-1, 2, 3, of plan's --params on its --gpus."""
    pictures = []

    def report(flags) -> str:
        if not flags.params or not flags.gpus:
            raise InputError("this page needs --params and --gpus, such as 7e9 and 8")
        check_counts(flags, "gpus")
        model, _ = model_from(flags)
        rows = []
        for level, title in enumerate(("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")):
            axes = {"shard": flags.gpus, "zero": level} if level else {"dp": flags.gpus}
            parts = vars(memory(model, Layout(**axes), 1, flags.precision))
            del parts["activations"]
            rows.append(_row(title, _gigabytes(sum(parts.values())), parts, _gigabytes))
        pictures.append({"title": f"Memory of each of {_gpus(flags.gpus)}, without activations", "rows": rows})
        return "\n".join(f"{row['name']:8} {row['label']:>9}" for row in rows)

    return {"text": _printed(lambda: print_report(plan_parser(), report, arguments)), "pictures": pictures}


def pipeline_parser() -> Parser:
    parser = Parser(prog="pipeline")
    parser.add_argument("--stages", type=int, required=True, help="one per rank")
    parser.add_argument("--micro-batches", type=int, required=True, help="of an update")
    parser.add_argument("--schedule", default="1f1b", choices=SCHEDULES, help="(%(default)s)")
    return parser


def pipeline(arguments: list[str]) -> dict:
    pictures = []

    def report(flags) -> str:
        stages, count = flags.stages, flags.micro_batches
        ranks = schedule(flags.schedule, stages, count)
        lanes = [{"name": f"rank {rank}", "events": _numbered(events)} for rank, events in enumerate(ranks)]
        end, bubble = max(events[-1]["end"] for events in ranks), order_bubble(ranks)
        title = f"{flags.schedule}, {stages} stages, {count} micro-batches: {bubble:.0%} of the time is bubble"
        pictures.append({"title": title, "parts": ["forward", "backward"], "lanes": lanes, "end": end, "label": ""})
        kept = ", ".join(str(most_in_flight(events)) for events in ranks)
        return (
            f"bubble: {bubble:.1%} of the time; (p - 1) / (m + p - 1) = {(stages - 1) / (count + stages - 1):.1%}\n"
            f"micro-batches whose activations a rank keeps at most, rank 0 first: {kept}"
        )

    return {"text": _printed(lambda: print_report(pipeline_parser(), report, arguments)), "pictures": pictures}


def _numbered(events: list[dict]) -> list[dict]:
    return [{**event, "part": event["kind"], "text": str(event["number"] + 1)} for event in events]


def explain(log: bytes, name: str) -> dict:
    """name: of a file; "" for what was pasted."""
    text = _printed(lambda: print(page(*explain_logs([Log(bytes(log).decode(errors="replace"), name)]))))
    return {"text": text, "pictures": []}


def _printed(run: Callable[[], object]) -> str:
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        run()
    return output.getvalue()


def _row(name: str, label: str, parts: dict[str, float], written: Callable[[float], str]) -> dict:
    shown = [{"name": part, "value": value, "label": written(value)} for part, value in parts.items()]
    return {"name": name, "label": label, "parts": shown}


def _gigabytes(size: float) -> str:
    return with_prefix(size, "B")


def _gpus(count: int) -> str:
    return f"{count:,} GPU{'s' * (count > 1)}"


COMMANDS = {"plan": plan, "predict": predict, "explain": explain, "zero": zero, "pipeline": pipeline}
