"""Start a script on N processes from a notebook cell, print each rank's lines live, and show the first failure.

    run = torchrun("scripts/04_ddp.py", "--steps", 5, nproc=2, timeout=60)
    run.results[0]["loss"], run.lines[1], run.seconds

torchrun runs under `ddp_doctor/launch/supervise.py`, which ends torchrun and all ranks when the cell is interrupted,
the run takes too long, or the process that called `torchrun` is killed.
"""

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ddp_doctor.launch.first_failure import STOPPED, Failure, first_failure
from ddp_doctor.launch.rank_output import RankOutput, shorter_paths
from ddp_doctor.launch.supervised import Run, supervised, supervised_environment

from ddp_course.base.errors import InputError
from ddp_course.launcher.cores import default_processes, threads_per_process


class RunFailed(Exception):
    """A run ended with an exit code that is not 0; `run` holds what it printed until then."""

    def __init__(self, message: str, run: Run):
        super().__init__(message)
        self.run = run

    def _render_traceback_(self):
        # IPython shows this instead of the launcher's own frames, which say nothing about the script.
        return [f"\x1b[31m{type(self).__name__}\x1b[0m: {self}"]


class RunStopped(RunFailed):
    """Every rank ended with exit code 75: the run was asked to stop before its end, and can be resumed."""


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
    show_every: int = 1,
    torchrun_args: Iterable[str] = (),
) -> Run:
    """Runs `script` with `args` on `nproc` processes of this machine and returns the finished Run.

    nproc           processes; None: one for each GPU, two without a GPU
    timeout         seconds until the run is ended; None: never
    env             environment variables, added to this process's own. OMP_NUM_THREADS, unless given here or already
                    smaller, is set so that processes x threads do not exceed the usable cores
    check           raise if the run does not end with exit code 0; otherwise see `run.exit_code`, `run.timed_out`
    quiet           print nothing
    show_every      of the lines "step N  loss ...", print those where N is 1 or a multiple of this; the Run has all
    torchrun_args   more options for torchrun, such as "--max-restarts=1". With options of several nodes, the ranks in
                    the Run are the local ranks of this node. With "--nnodes=1:2" a variable is set without which no
                    node could join later: see `added_variables`

    Raises RunFailed with the traceback of the rank that broke the run first, RunStopped if all ranks were asked to stop
    before the end (exit code 75), RunTimedOut with the last line of each rank that was still running, InputError if the
    run cannot be started as asked. Interrupting the cell sends SIGTERM and gives the ranks ten seconds.
    """
    __tracebackhide__ = True  # pytest shows the caller's line
    nproc = default_processes() if nproc is None else nproc
    torchrun_args = [str(arg) for arg in torchrun_args]
    check_input(script, nproc, torchrun_args)
    script = short_path(script)
    added = added_variables(nproc, env, torchrun_args)
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
    # -P: no file in this folder can shadow a module that torchrun imports
    command = [sys.executable, "-P", "-m", "torch.distributed.run", *options, *script_and_args]
    environment = supervised_environment() | added
    output = RankOutput(folder, run, quiet, shows=lambda line: is_shown(line, show_every))
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
    """If the run has a `failure`, raise RunStopped if all ranks ended with exit code 75, else RunFailed."""
    __tracebackhide__ = True
    if run.failure:
        stopped = set(run.exit_codes.values()) == {STOPPED}
        raise (RunStopped if stopped else RunFailed)(f"{run.failure.text.rstrip()}\n\n({run})", run)


def is_shown(line: str, show_every: int) -> bool:
    """Whether `line` is of the first step, of a step that `show_every` divides, or of no step."""
    step = re.match(r"step (\d+)\b", line)
    return step is None or int(step[1]) == 1 or int(step[1]) % show_every == 0


def short_path(script: str | Path) -> Path:
    """`script` relative to the working directory if it is below it, else unchanged."""
    inside = Path(script).is_absolute() and Path(script).is_relative_to(os.getcwd())
    return Path(script).relative_to(os.getcwd()) if inside else Path(script)


def added_variables(processes: int, env: Mapping[str, object] | None, torchrun_args: list[str]) -> dict[str, str]:
    """The variables to add to the environment of `processes` on this machine; those in `env` take precedence."""
    most, chosen = threads_per_process(processes), os.environ.get("OMP_NUM_THREADS", "")
    fewer = chosen.isdecimal() and 0 < int(chosen) < most
    added = {"OMP_NUM_THREADS": chosen if fewer else most, **(env or {})}
    if any(re.match(r"--nnodes=\d+:\d+$", arg) for arg in torchrun_args):
        # torch 2.11 to 2.15 goes on with the store of the first round, and does not send its address to new nodes.
        added = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": 1, **added}
    return {name: str(value) for name, value in added.items()}


def command_line(added: Mapping[str, str], words: Iterable[str]) -> str:
    """The shell command for torchrun with these `words`, after assignments of the `added` environment variables."""
    settings = [f"{name}={shlex.quote(value)}" for name, value in added.items()]
    return " ".join([*settings, shlex.join(["torchrun", *words])])


def check_input(script: str | Path, nproc: int, torchrun_args: Iterable[str]) -> None:
    """Raise InputError for a missing script, a wrong number of processes, or an option that the launcher sets."""
    if not Path(script).is_file():
        raise InputError(f"There is no script {str(script)!r} in {os.getcwd()}; a Python file is needed.")
    if isinstance(nproc, bool) or not isinstance(nproc, int) or nproc < 1:
        raise InputError(f"nproc is a number of processes, a whole number from 1 up; got {nproc!r}.")
    for arg in torchrun_args:
        if re.match(r"(--(log[-_]dir|redirects|tee|nproc[-_]per[-_]node|standalone)\b|-r|-t)", arg):
            name = arg.partition("=")[0]
            raise InputError(f"torchrun_args has {name}, which the launcher sets itself; leave it out.")


def timeout_message(
    run: Run, timeout: float, running: Sequence[int], name: Callable[[int], str] = "rank {}".format
) -> str:
    """The message for a run that was ended at its timeout with these ranks `running`; `name(rank)` names a rank."""
    if not running:
        return f"no end after {timeout:g} s, and no rank was running: torchrun was still starting, or ending"
    names = " and ".join(name(rank) for rank in running)
    message = f"no end after {timeout:g} s: {names} {'was' if len(running) == 1 else 'were'} still running"
    for rank in running:
        last = next((line for line in reversed(run.lines[rank]) if line.strip()), None)
        message += f"\nlast line of {name(rank)}: {last}" if last else f"\n{name(rank)} had printed nothing"
    return message
