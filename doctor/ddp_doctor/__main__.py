"""Names the rank, the collective and the line when a multi-process PyTorch job hangs or dies, or trains wrongly.

    python -m ddp_doctor run --nproc 2 train.py --lr 0.1     # instead of torchrun
    python -m ddp_doctor attach PID                          # of torchrun, or of one rank
    python -m ddp_doctor check train.py --epochs 2           # two short runs on the CPU, then a checklist
    python -m ddp_doctor meet node1:29500                    # on each machine, before a job on several

The script needs to know nothing of this. `run` ends with exit code 0 if the job ended well, else 1; `attach` with 0 if
no rank waits for one that will not come, else 1; `check` and `meet` with 0 if nothing is wrong, else 1; 2 is for what
cannot be done as asked.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path

from ddp_doctor import check as checking
from ddp_doctor import meeting
from ddp_doctor.attach import look_at_job
from ddp_doctor.diagnosis import diagnose
from ddp_doctor.errors import InputError, in_one_line
from ddp_doctor.launch.cores import default_processes
from ddp_doctor.page import as_json, page
from ddp_doctor.watch import run_and_watch


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ddp_doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="start a script under torchrun and watch it")
    run.add_argument("--nproc", type=int, help="ranks; one for each GPU, two without a GPU, if not given")
    run.add_argument("--idle", type=float, default=5.0, metavar="S", help="seconds without progress until it hangs")
    run.add_argument("--timeout", type=float, metavar="S", help="look, and end the job, after S seconds in any case")
    run.add_argument("--json", type=Path, metavar="FILE", help="write the findings there, too")
    run.add_argument("script", help="the training script, and its own arguments after it")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    attach = commands.add_parser("attach", help="look at a job that runs now, and leave it running")
    attach.add_argument("pid", type=int, help="process id of torchrun, or of one rank")
    attach.add_argument("--json", type=Path, metavar="FILE", help="write the findings there, too")
    check = commands.add_parser("check", help="run a script twice, and say what is silently wrong with it")
    check.add_argument("--nproc", type=int, default=2, help="ranks (%(default)s)")
    check.add_argument("--seconds", type=float, default=120.0, metavar="S", help="of each run at most (%(default)g)")
    check.add_argument("--once", action="store_true", help="a single run: nothing is confirmed by a second one")
    check.add_argument("--resume-with", default="", metavar="ARGS", help="arguments that the second run gets, too")
    check.add_argument("--json", type=Path, metavar="FILE", help="write the findings there, too")
    check.add_argument("script", help="the training script, and its own arguments after it: a short run of it")
    check.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    meet = commands.add_parser("meet", help="say whether this machine can meet the others at an endpoint")
    meet.add_argument("endpoint", help="HOST:PORT, as given to torchrun's --rdzv-endpoint")
    given = parser.parse_args(arguments)
    try:
        if given.command == "check":
            more = shlex.split(given.resume_with)
            checked = checking.check(given.script, given.arguments, given.nproc, given.seconds, given.once, more)
            print(f"\n{checking.checklist(checked)}", flush=True)
            _write(given.json, checking.as_json(checked))
            return 1 if checked.wrong else 0
        if given.command == "meet":
            seen = meeting.look(given.endpoint)
            print(meeting.checklist(seen), flush=True)
            return 1 if any(one.status == "wrong" for one in seen) else 0
        if given.command == "run":
            nproc = default_processes() if given.nproc is None else given.nproc
            job = run_and_watch(given.script, given.arguments, nproc, given.idle, given.timeout)
        else:
            job = look_at_job(given.pid)
    except InputError as error:
        print(f"error: {in_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; the job was ended", file=sys.stderr)
        return 130
    verdict = diagnose(job)
    print(f"\n{page(job, verdict)}", flush=True)
    _write(given.json, as_json(job, verdict))
    return 0 if verdict.kind == ("well" if given.command == "run" else "running") else 1


def _write(path: Path | None, findings: dict) -> None:
    if path:
        path.write_text(json.dumps(findings, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
