"""The commands of `python -m ddp_doctor` and their arguments."""

import argparse
import contextlib
import json
import math
import os
import shlex
import sys
from pathlib import Path

from ddp_doctor import __main__, meeting
from ddp_doctor import check as checking
from ddp_doctor.attach import look_at_job
from ddp_doctor.diagnosis import diagnose
from ddp_doctor.errors import InputError, in_one_line
from ddp_doctor.explain import as_json as explain_json
from ddp_doctor.explain import explain_logs, log_files
from ddp_doctor.explain import page as explain_page
from ddp_doctor.explain.log_lines import Log
from ddp_doctor.job import Job
from ddp_doctor.launch.cores import default_processes
from ddp_doctor.page import as_json, page
from ddp_doctor.watch import run_and_watch

GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # without one there is no need to import torch


def execute(arguments: list[str] | None = None) -> int:
    """Does what the arguments ask for; returns the exit code."""
    try:
        options = _parser().parse_args(arguments)
        _refuse_unwritable(getattr(options, "json", None))
        commands = {"run": _run, "attach": _attach, "check": _check, "meet": _meet, "explain": _explain}
        return commands[options.command](options)
    except InputError as error:
        print(f"error: {in_one_line(error)}", file=sys.stderr)
        return 2


def _run(options) -> int:
    nproc = options.nproc or (default_processes() if any(map(os.path.exists, GPU_DEVICES)) else 2)

    def report(job: Job) -> None:
        verdict = diagnose(job)
        print(f"\n{page(job, verdict)}\n", flush=True)
        _write(options.json, as_json(job, verdict))

    job = run_and_watch(
        options.script, options.arguments, nproc, options.idle, options.timeout, options.end_after, report
    )
    report(job)
    if job.ended == "interrupt":
        return 130
    return 0 if diagnose(job).kind == "well" else 1


def _attach(options) -> int:
    job = look_at_job(options.pid, options.debug_server)
    verdict = diagnose(job)
    print(page(job, verdict), flush=True)
    _write(options.json, as_json(job, verdict))
    return 0 if verdict.kind == "running" else 1


def _check(options) -> int:
    try:
        resume_arguments = shlex.split(options.resume_with)
    except ValueError as error:
        raise InputError(f"--resume-with {options.resume_with!r} cannot be split into arguments: {error}.") from error
    checked = checking.check(
        options.script, options.arguments, options.nproc, options.seconds, options.once, resume_arguments
    )
    print(f"\n{checking.checklist(checked)}", flush=True)
    _write(options.json, checking.as_json(checked))
    return 1 if checked.wrong else 0


def _meet(options) -> int:
    findings = meeting.look(options.endpoint)
    print("\n".join(finding.headline for finding in findings), flush=True)
    return 1 if any(finding.status == "wrong" for finding in findings) else 0


def _explain(options) -> int:
    logs = []
    for path in options.logs:
        try:
            logs += [Log(sys.stdin.buffer.read().decode(errors="replace"))] if str(path) == "-" else log_files(path)
        except OSError as error:
            raise InputError(f"the log {str(path)!r} cannot be read: {error.strerror}.") from error
    if not logs:
        raise InputError(f"the folder {str(options.logs[0])!r} holds no log.")
    explanation, facts = explain_logs(logs)
    print(explain_page(explanation, facts), flush=True)
    _write(options.json, explain_json(explanation, facts))
    return 0 if explanation.message is None or explanation.message.role == "warning" else 1


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise InputError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m ddp_doctor", description=__main__.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    count, seconds = _above_0(int, "a whole number"), _above_0(float, "a number of seconds")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="start a script under torchrun and watch it")
    run.add_argument("--nproc", type=count, help="ranks; one for each GPU, two without a GPU, if not given")
    run.add_argument("--idle", type=seconds, default=5.0, metavar="S", help="report after S seconds without movement")
    run.add_argument("--end-after", type=seconds, metavar="S", help="end the job after S seconds without movement")
    run.add_argument("--timeout", type=seconds, metavar="S", help="look, and end the job, after S seconds in any case")
    run.add_argument("script", help="the training script, and its own arguments after it")
    attach = commands.add_parser("attach", help="look at a job that runs now, and leave it running")
    attach.add_argument("pid", type=count, help="process id of torchrun, of what starts the ranks, or of one rank")
    attach.add_argument("--debug-server", metavar="URL", help="of torch's debug server, if the script has started one")
    check = commands.add_parser("check", help="run a script a few times, and say what is silently wrong with it")
    check.add_argument("--nproc", type=count, default=2, help="ranks (%(default)s)")
    check.add_argument("--seconds", type=seconds, default=120.0, metavar="S", help="of each run at most (%(default)g)")
    check.add_argument("--once", action="store_true", help="a single run: nothing is confirmed by a second one")
    check.add_argument("--resume-with", default="", metavar="ARGS", help="arguments that the second run gets, too")
    check.add_argument("script", help="the training script, and its own arguments after it: a short run of it")
    meet = commands.add_parser("meet", help="say whether this machine can meet the others at an endpoint")
    meet.add_argument("endpoint", help="HOST:PORT, as given to torchrun's --rdzv-endpoint")
    explain = commands.add_parser("explain", help="say of a pasted log what failed first, and on which rank")
    explain.add_argument(
        "logs", nargs="+", type=Path, metavar="LOG", help="a file, torchrun's --log-dir, or - for a pipe"
    )
    for command in (run, attach, check, explain):
        command.add_argument("--json", type=Path, metavar="FILE", help="write the findings there, too")
    for command in (run, check):
        command.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _above_0(kind, what: str):
    """A parser of an argument that is a number of this kind, int or float."""

    def parse(text: str):
        with contextlib.suppress(ValueError):
            if 0 < (number := kind(text)) < math.inf:
                return number
        raise argparse.ArgumentTypeError(f"{what} above 0 is needed, not {text}")

    return parse


def _refuse_unwritable(path: Path | None) -> None:
    """Raises InputError if the file cannot be written: now, not when the job is over."""
    if path is None:
        return
    existed = path.exists()
    try:
        path.open("a").close()
        if not existed:
            os.unlink(path)
    except OSError as error:
        raise InputError(f"--json {str(path)!r} cannot be written: {error.strerror}.") from error


def _write(path: Path | None, findings: dict) -> None:
    if path:
        path.write_text(json.dumps(findings, indent=1) + "\n", encoding="utf-8")
