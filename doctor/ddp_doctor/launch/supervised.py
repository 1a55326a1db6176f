"""Runs a command to its end under `supervise.py`, and follows what its ranks print: nothing of it is left behind."""

import json
import os
import select
import shutil
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from ddp_doctor.launch.first_failure import Failure
from ddp_doctor.launch.supervise import RUN_VARIABLE, sweep

INTERRUPT_GRACE = 10.0  # seconds for a trainer to save its checkpoint after the reader interrupted the cell
TIMEOUT_GRACE = 3.0
POLL = 0.05  # seconds between two looks at the ranks' output


@dataclass(repr=False)
class Run:
    """One launch: what each rank printed and returned, and how it ended.

    `lines` and `results` are by rank. A line of stdout that is exactly one JSON object is a result: it is merged
    into `results[rank]` and not shown; every other line of stdout and stderr is in `lines[rank]`. `exit_code` is
    torchrun's (None if its supervisor was killed), `exit_codes` each rank's as far as known (negative: a signal),
    `seconds` wall clock from start to end, `failure` the rank that broke the run first (None after a timeout),
    `launcher_lines` torchrun's own log.
    """

    command: str
    lines: dict[int, list[str]]
    results: dict[int, dict]
    exit_code: int | None = None
    exit_codes: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0
    failure: Failure | None = None
    timed_out: bool = False
    launcher_lines: list[str] = field(default_factory=list)

    def __repr__(self):
        ranks = "1 rank" if len(self.lines) == 1 else f"{len(self.lines)} ranks"
        ending = "timed out after " if self.timed_out else ""
        return f"{ranks}, exit code {self.exit_code}, {ending}{self.seconds:.1f} s"


def supervised_environment() -> dict[str, str]:
    """This process's environment, with a tag of its own by which `supervised` finds whatever the run has started."""
    return {
        **os.environ,
        RUN_VARIABLE: uuid.uuid4().hex,
        "PYTHONUNBUFFERED": "1",
        # A kernel asks its children for colours, and then tracebacks are full of escape codes.
        "PYTHON_COLORS": "0",
        # torch looks up the names of the addresses it connects to; a lost answer would cost five seconds.
        "RES_OPTIONS": "timeout:1 attempts:1",
    }


def supervised(command, environment, folder, timeout, output, stop_when=lambda: False):
    """Runs `command` under supervise.py to its end and fills output.run; returns the ranks running at the timeout.

    stop_when: asked many times a second; True ends the run as its timeout does.
    """
    start = time.monotonic()
    deadline = None if timeout is None else start + timeout
    supervise = Path(__file__).with_name("supervise.py")
    with open(folder / "supervisor.log", "wb") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-P", supervise, str(os.getpid()), str(folder), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,
            start_new_session=True,  # an interrupt of the kernel must not reach it
            env=environment,
        )
    try:
        try:
            report = _follow(supervisor, output, deadline, stop_when)
            if report is None:
                output.run.timed_out = True
                report = _stop(supervisor, output, TIMEOUT_GRACE)
        except KeyboardInterrupt:
            _stop(supervisor, output, INTERRUPT_GRACE)
            output.finish()
            raise
        if not report:
            sweep(environment[RUN_VARIABLE])
        output.finish()
        output.run.exit_code = report.get("exit_code")
        return report.get("running", {}).get(getattr(output, "number", "LOCAL_RANK"), [])
    finally:
        try:
            supervisor.stdin.close()  # as if we had died: ends whatever still runs, removes the folder
            supervisor.wait(15)
        except subprocess.TimeoutExpired:
            pass  # the next line does its work
        finally:
            sweep(environment[RUN_VARIABLE])  # finds something only if the supervisor was killed
            supervisor.wait()
            supervisor.stdout.close()
            shutil.rmtree(folder, ignore_errors=True)
            output.run.seconds = time.monotonic() - start


def _follow(supervisor, output, deadline, stop_when=lambda: False):
    """Passes the ranks' lines on until the supervisor reports the end; None if the deadline or stop_when came first.

    The report is {"exit_code": torchrun's, "running": ranks that had to be ended, by the name of the variable that has
    their number}, {} if the supervisor was killed.
    """
    while deadline is None or time.monotonic() < deadline:
        if select.select([supervisor.stdout], [], [], POLL)[0]:
            report = supervisor.stdout.readline()
            return json.loads(report) if report.endswith(b"\n") else {}
        output.pass_on()
        if stop_when():
            break
    return None


def _stop(supervisor, output, grace):
    try:
        supervisor.stdin.write(b"stop %g\n" % grace)
    except BrokenPipeError:
        pass  # it was killed, which _follow sees at once
    return _follow(supervisor, output, time.monotonic() + grace + 15) or {}
