"""Runs a command under `supervise.py` and follows what its ranks print; no process and no file of it is left."""

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

INTERRUPT_GRACE = 10.0  # seconds for a trainer to save its checkpoint after the user interrupted the cell
TIMEOUT_GRACE = 3.0
SUPERVISOR_LIMIT = 60.0  # seconds beyond the grace for the supervisor to do its work; only a real hang takes so long
POLL_INTERVAL = 0.05  # seconds between two reads of the ranks' output


@dataclass(repr=False)
class Run:
    """One launch: what each rank printed and returned, and how it ended.

    lines       rank -> its lines of stdout and stderr, without results
    results     rank -> its lines of stdout that are a JSON object, merged into one dictionary and not shown
    exit_code   torchrun's; None if its supervisor was killed
    exit_codes  rank -> its exit code, as far as known (negative: a signal)
    seconds     wall clock from start to end
    failure     of the rank that broke the run first; None after a timeout
    launcher_lines   torchrun's own log
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
    """This process's environment and a new tag in RUN_VARIABLE, by which `supervised` finds all processes of a run."""
    return {
        **os.environ,
        RUN_VARIABLE: uuid.uuid4().hex,
        "PYTHONUNBUFFERED": "1",
        # ipykernel sets FORCE_COLOR for its children, whose tracebacks would have escape codes.
        "PYTHON_COLORS": "0",
        # torch looks up the host names of its peers' addresses; an answer that is lost would cost five seconds.
        "RES_OPTIONS": "timeout:1 attempts:1",
    }


@contextlib.contextmanager
def supervisor(command, environment, folder):
    """Starts `command` under supervise.py, its output in `folder`; yields the supervisor's Popen, for `until_the_end`.

    After the block no process of it is left, nor the folder, whatever happened in the block.
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
            process.stdin.close()  # the supervisor then ends what still runs, and removes the folder
            process.wait(SUPERVISOR_LIMIT)
        except subprocess.TimeoutExpired:
            pass  # sweep kills it
        finally:
            sweep(environment[RUN_VARIABLE])  # finds something only if the supervisor was killed
            process.wait()
            process.stdout.close()
            shutil.rmtree(folder, ignore_errors=True)


def until_the_end(process, timeout=None, pass_on=lambda: None, stop_when=lambda: False):
    """Waits for the end of what a `supervisor` runs; ends it after `timeout` seconds. Returns a report.

    The report is {"exit_code": torchrun's, "running": the result of supervise.running_ranks when the run was ended,
    "timed_out": whether the timeout or stop_when ended it}; only "timed_out" if the supervisor was killed.

    pass_on, stop_when   called many times a second; if stop_when returns True, the run is ended as after a timeout
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
    """Runs `command` to its end and fills output.run, a Run; returns the ranks that were running at the timeout."""
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
        return report.get("running", {}).get(output.rank_variable, [])
    finally:
        output.run.seconds = time.monotonic() - start


def _follow(process, pass_on, deadline, stop_when=lambda: False):
    """Calls pass_on until the supervisor reports the end; returns the report, None if it has to be ended before."""
    while deadline is None or time.monotonic() < deadline:
        if select.select([process.stdout], [], [], POLL_INTERVAL)[0]:
            report = process.stdout.readline()
            return json.loads(report) if report.endswith(b"\n") else {}
        pass_on()
        if stop_when():
            break
    return None


def _stop(process, pass_on, grace):
    """Asks the supervisor to end the run within `grace` seconds; returns its report, {} if it was killed."""
    try:
        process.stdin.write(b"stop %g\n" % grace)
    except BrokenPipeError:
        pass  # it was killed, which _follow sees at once
    return _follow(process, pass_on, time.monotonic() + grace + SUPERVISOR_LIMIT) or {}
