"""Runs a command to its end under `supervise.py`, and follows what its ranks print: nothing of it is left behind."""

import contextlib
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


@contextlib.contextmanager
def supervisor(command, environment, folder):
    """Starts `command` under supervise.py, its output in `folder`; yields the supervisor, for `until_the_end`.

    Behind the block nothing of it is left, whatever happened in it: neither a process nor the folder.
    """
    supervise = Path(__file__).with_name("supervise.py")
    with open(folder / "supervisor.log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", supervise, str(os.getpid()), str(folder), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,
            start_new_session=True,  # an interrupt of the kernel must not reach it
            env=environment,
        )
    try:
        yield process
    finally:
        try:
            process.stdin.close()  # as if we had died: ends whatever still runs, removes the folder
            process.wait(15)
        except subprocess.TimeoutExpired:
            pass  # the next line does its work
        finally:
            sweep(environment[RUN_VARIABLE])  # finds something only if the supervisor was killed
            process.wait()
            process.stdout.close()
            shutil.rmtree(folder, ignore_errors=True)


def until_the_end(process, timeout=None, pass_on=lambda: None, stop_when=lambda: False):
    """Waits for the end of what a `supervisor` runs, or brings it about after `timeout` seconds; its report.

    The report is {"exit_code": torchrun's, "running": ranks that had to be ended, by the name of the variable that has
    their number, "timed_out": whether time or stop_when ended it}; only the last if the supervisor was killed.

    pass_on, stop_when   asked many times a second; True of stop_when ends the run as its timeout does
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        report = _follow(process, pass_on, deadline, stop_when)
    except KeyboardInterrupt:
        _stop(process, pass_on, INTERRUPT_GRACE)
        raise
    timed_out = report is None
    return {**(_stop(process, pass_on, TIMEOUT_GRACE) if timed_out else report), "timed_out": timed_out}


def supervised(command, environment, folder, timeout, output, stop_when=lambda: False):
    """Runs `command` to its end in a `supervisor` and fills output.run; returns the ranks running at the timeout."""
    start = time.monotonic()
    try:
        with supervisor(command, environment, folder) as process:
            try:
                report = until_the_end(process, timeout, output.pass_on, stop_when)
                if "exit_code" not in report:
                    sweep(environment[RUN_VARIABLE])
            finally:
                output.finish()
        output.run.timed_out, output.run.exit_code = report["timed_out"], report.get("exit_code")
        return report.get("running", {}).get(output.number, [])
    finally:
        output.run.seconds = time.monotonic() - start


def _follow(process, pass_on, deadline, stop_when=lambda: False):
    """Passes the ranks' lines on until the supervisor reports the end; None if the deadline or stop_when came first."""
    while deadline is None or time.monotonic() < deadline:
        if select.select([process.stdout], [], [], POLL)[0]:
            report = process.stdout.readline()
            return json.loads(report) if report.endswith(b"\n") else {}
        pass_on()
        if stop_when():
            break
    return None


def _stop(process, pass_on, grace):
    try:
        process.stdin.write(b"stop %g\n" % grace)
    except BrokenPipeError:
        pass  # it was killed, which _follow sees at once
    return _follow(process, pass_on, time.monotonic() + grace + 15) or {}
