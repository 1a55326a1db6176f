"""Start a script on N processes from a notebook cell: each rank's lines live, the first failure by name, nothing left.

    run = torchrun("scripts/04_ddp.py", "--steps", 5, nproc=2, timeout=60)
    run.results[0]["loss"], run.lines[1], run.seconds

Between this process and torchrun stands `supervise.py`, which ends all of it when a cell is interrupted, a run takes
too long, or this very process is killed.
"""

import json
import os
import re
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ddp_course.errors import InputError
from ddp_course.lab.cores import default_processes, threads_per_process
from ddp_course.launcher.first_failure import STOPPED, Failure, first_failure
from ddp_course.launcher.rank_output import RankOutput, shorter_paths
from ddp_course.launcher.supervise import RUN_VARIABLE, sweep

__all__ = ["Failure", "Run", "RunFailed", "RunTimedOut", "sweep", "torchrun"]

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


class RunFailed(Exception):
    """A run ended with an exit code that is not 0; `run` holds what it printed until then."""

    def __init__(self, message: str, run: Run):
        super().__init__(message)
        self.run = run

    def _render_traceback_(self):
        # IPython shows this instead of the launcher's own frames, which say nothing about the script.
        return [f"\x1b[31m{type(self).__name__}\x1b[0m: {self}"]


class RunStopped(RunFailed):
    """Every rank ended with exit code 75: the run was asked to stop before its end, and goes on if started again."""


class RunTimedOut(RunFailed):
    """A run was still going after its timeout and was ended."""


def torchrun(
    script: str | Path,
    *args,
    nproc: int | None = None,
    timeout: float | None = 120,
    env: Mapping[str, object] | None = None,
    check: bool = True,
    quiet: bool = False,
    torchrun_args: Iterable[str] = (),
) -> Run:
    """Runs `script` with `args` on `nproc` processes of this machine and returns the finished Run.

    nproc           processes; None: one for each GPU, two without a GPU
    timeout         seconds until the run is ended; None: never
    env             environment variables, added to this process's own. OMP_NUM_THREADS, unless given here, is what
                    keeps processes x threads within the usable cores
    check           raise if the run does not end with exit code 0; otherwise see `run.exit_code`, `run.timed_out`
    quiet           print nothing
    torchrun_args   more options for torchrun, such as "--max-restarts=1". With those of several nodes, the ranks in
                    the Run are the local ranks of this node; with "--nnodes=1:2" the variable without which no node
                    can join is set

    Raises RunFailed with the traceback of the rank that broke the run first, RunStopped if all ranks were asked to stop
    before the end (exit code 75), RunTimedOut with the last line of each rank that was still running, InputError if the
    run cannot be started as asked. Interrupting the cell sends SIGTERM and gives the ranks ten seconds.
    """
    __tracebackhide__ = True  # pytest shows the caller's line
    nproc = default_processes() if nproc is None else nproc
    torchrun_args = [str(arg) for arg in torchrun_args]
    check_input(script, nproc, torchrun_args)
    script = shown(script)
    added = variables(nproc, env, torchrun_args)
    several_nodes = any(re.match("--(nnodes|node|rdzv|master)", arg) for arg in torchrun_args)
    options = [*([] if several_nodes else ["--standalone"]), f"--nproc-per-node={nproc}", *torchrun_args]
    script_and_args = [str(script), *map(str, args)]
    run = Run(
        command=command_line(added, [*options, *script_and_args]),
        lines={rank: [] for rank in range(nproc)},
        results={rank: {} for rank in range(nproc)},
    )
    if not quiet:
        print(run.command, flush=True)

    folder = Path(tempfile.mkdtemp(prefix="ddp_course_run_"))
    options += ["--redirects=3", f"--log-dir={folder / 'ranks'}"]
    # -P: nothing in this folder shadows a module that torchrun imports
    command = [sys.executable, "-P", "-m", "torch.distributed.run", *options, *script_and_args]
    environment = supervised_environment() | added
    output = RankOutput(folder, run, quiet)
    running = supervised(command, environment, folder, timeout, output)

    run.exit_codes, failure = first_failure(
        run.exit_code, run.launcher_lines, run.lines, output.errors, output.first_traceback
    )
    if failure and not run.timed_out:
        run.failure = Failure(failure.rank, failure.exit_code, shorter_paths(failure.text))
    if check and run.timed_out:
        raise RunTimedOut(timeout_message(run, timeout, running), run)
    if check:
        raise_failure(run)
    return run


def raise_failure(run: Run) -> None:
    """RunFailed, or RunStopped, if a run that has ended has a `failure`."""
    __tracebackhide__ = True
    if run.failure:
        stopped = set(run.exit_codes.values()) == {STOPPED}
        raise (RunStopped if stopped else RunFailed)(f"{run.failure.text.rstrip()}\n\n({run})", run)


def shown(script: str | Path) -> Path:
    """`script` as a reader would write it: relative, if it is below this folder."""
    inside = Path(script).is_absolute() and Path(script).is_relative_to(os.getcwd())
    return Path(script).relative_to(os.getcwd()) if inside else Path(script)


def variables(processes: int, env: Mapping[str, object] | None, torchrun_args: list[str]) -> dict[str, str]:
    """What is added to the environment of a run that has `processes` on this machine; `env` wins."""
    added = {"OMP_NUM_THREADS": threads_per_process(processes), **(env or {})}
    if any(re.match(r"--nnodes=\d+:\d+$", arg) for arg in torchrun_args):
        # torch 2.13 keeps the first round's store for later rounds, and does not tell a node that joins where it is.
        added = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": 1, **added}
    return {name: str(value) for name, value in added.items()}


def command_line(added: Mapping[str, str], words: Iterable[str]) -> str:
    """torchrun as one would type it, with the environment variables that are added before it."""
    settings = [f"{name}={shlex.quote(value)}" for name, value in added.items()]
    return " ".join([*settings, shlex.join(["torchrun", *words])])


def check_input(script, nproc, torchrun_args):
    """Raises InputError for a launch that cannot be started as asked."""
    if not Path(script).is_file():
        raise InputError(f"There is no script {str(script)!r} in {os.getcwd()}; a Python file is needed.")
    if isinstance(nproc, bool) or not isinstance(nproc, int) or nproc < 1:
        raise InputError(f"nproc is a number of processes, a whole number from 1 up; got {nproc!r}.")
    for arg in torchrun_args:
        if re.match(r"(--(log[-_]dir|redirects|tee|nproc[-_]per[-_]node|standalone)\b|-r|-t)", arg):
            name = arg.partition("=")[0]
            raise InputError(f"torchrun_args has {name}, which the launcher sets itself; leave it out.")


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


def timeout_message(run, timeout, running, name="rank {}".format):
    """What to say of a run that was ended at its timeout; `name`: what a rank is called."""
    if not running:
        return f"no end after {timeout:g} s, and no rank was running: torchrun was still starting, or ending"
    names = " and ".join(name(rank) for rank in running)
    message = f"no end after {timeout:g} s: {names} {'was' if len(running) == 1 else 'were'} still running"
    for rank in running:
        last = next((line for line in reversed(run.lines[rank]) if line.strip()), None)
        message += f"\nlast line of {name(rank)}: {last}" if last else f"\n{name(rank)} had printed nothing"
    return message
