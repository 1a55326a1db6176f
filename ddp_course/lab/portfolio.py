"""Collect the evidence for a capstone: runs of your own script on this machine, as a page and as JSON.

    python -m ddp_course.lab.portfolio my_train.py --steps 20        writes ./portfolio/portfolio.md and .json

The script runs on 1, 2 and 3 processes, and its lines `step 3  loss 2.5` are compared; then the doctor checks it. The
page also shows the machine, the script's checksum, and the exercises that were passed. It judges nothing:
docs/teaching.md says how to assess the gaps and findings.
"""

import argparse
import datetime
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from ddp_course.base.command import run_command
from ddp_course.base.errors import InputError
from ddp_course.base.parser import Parser
from ddp_course.grader.progress import VARIABLE, read
from ddp_course.lab.machine import describe
from ddp_course.lab.probe import printed
from ddp_course.launcher import torchrun
from ddp_course.launcher.launch import RunFailed


def main(arguments: list[str] | None = None) -> int:
    """The command line. Exit code 0: the page is written, whatever it shows; 2: bad input."""
    parser = Parser(
        prog="python -m ddp_course.lab.portfolio",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("portfolio"), help="a new folder (%(default)s)")
    parser.add_argument("--seconds", type=float, default=600.0, help="that a run may take (%(default)g)")
    parser.add_argument("script", type=Path, help="the training script, and its own arguments after it")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    try:
        options = parser.parse_args(arguments)
        if not options.script.is_file():
            raise InputError(f"there is no script {options.script}")
        if options.out.exists():
            raise InputError(f"{options.out} is there already, and is left as it is: name a new folder with --out")
        proof = collect(options.script, options.arguments, options.seconds)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True)
    (options.out / "portfolio.json").write_text(json.dumps(proof, indent=1) + "\n", encoding="utf-8")
    (options.out / "portfolio.md").write_text(page(proof), encoding="utf-8")
    print(f"wrote {options.out / 'portfolio.md'}")
    return 0


def collect(script: Path, arguments: list[str], seconds: float) -> dict:
    """The content of the page, as JSON values. seconds: the most that each run may take."""
    runs = {nproc: losses(script, arguments, nproc, seconds) for nproc in (1, 2, 3)}
    folder = os.environ.get(VARIABLE, "progress")
    checked = [event for event in read(Path(folder)) if event["kind"] == "checked"]
    return {
        "made": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": str(describe()),
        "script": script.name,
        "sha256": hashlib.sha256(script.read_bytes()).hexdigest(),
        "arguments": arguments,
        "losses": runs,
        "doctor": checklist(script, arguments, seconds),
        "exercises passed": sorted({event["question"] for event in checked if event["state"] == "passed"}),
    }


def losses(script: Path, arguments: list[str], nproc: int, seconds: float) -> dict[int, float] | str:
    """{step: loss} as rank 0 printed it; or, if the run failed or printed none, the reason in one sentence."""
    # On fewer than three GPUs all runs are on CPUs, so that they can be compared.
    env = {} if torch.cuda.device_count() >= 3 else {"CUDA_VISIBLE_DEVICES": ""}
    try:
        run = torchrun(script, *arguments, nproc=nproc, timeout=seconds, show_every=10, env=env)
        return printed(run, "loss")
    except (RunFailed, InputError) as error:
        return str(error).splitlines()[0]


def checklist(script: Path, arguments: list[str], seconds: float) -> dict:
    """The report of `ddp_doctor check` on the script; {"failed": its error} if it wrote none."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "findings.json"
        command = [sys.executable, "-m", "ddp_doctor", "check", "--seconds", f"{seconds:g}", "--json", str(file)]
        result = subprocess.run(
            [*command, str(script), *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        return json.loads(file.read_text()) if file.exists() else {"failed": result.stderr.strip()}


def page(proof: dict) -> str:
    """The page, in Markdown."""
    command = " ".join([proof["script"], *proof["arguments"]])
    lines = [f"# Portfolio: `{command}`", "", f"Made {proof['made']}. SHA-256 of the script: `{proof['sha256']}`.", ""]
    lines += ["```", proof["machine"], "```", "", "## One process and several", ""]
    lines += ["| processes | steps | last loss | largest gap to one process |", "|---|---|---|---|"]
    lines += [f"| {nproc} | {' | '.join(_row(run, proof['losses'][1]))} |" for nproc, run in proof["losses"].items()]
    doctor = proof["doctor"]
    lines += ["", "## The doctor's checklist", ""]
    lines += [f"It did not come to its end: {doctor['failed']}", ""] if doctor["failed"] else []
    findings = doctor.get("findings", [])
    lines += [f"- **{finding['status']}** {finding['check']}: {finding['text']}" for finding in findings]
    passed = proof["exercises passed"]
    lines += ["", "## Exercises", ""]
    lines += [f"{len(passed)} passed: {', '.join(passed)}." if passed else "None passed here.", ""]
    return "\n".join(lines)


def _row(run: dict[int, float] | str, single: dict[int, float] | str) -> tuple[str, str, str]:
    """The cells of a run: steps, last loss (or the reason why there is none), largest gap to one process."""
    if isinstance(run, str):
        return "none", run, ""
    common = run.keys() & single.keys() if isinstance(single, dict) else set()
    gap = f"{max(abs(run[step] - single[step]) for step in common):.1e}" if common else "no step in common"
    return str(len(run)), f"{run[max(run)]:.6f}", gap


if __name__ == "__main__":
    run_command(main)
