"""Play Slurm for a batch script, in seconds and without Slurm: a job of two tasks that comes near its time limit.

The script runs in bash, and finds the programs of stand_in.py on PATH. The scheduler here sends the signals that Slurm
would send, and waits until the script is idle. No clock runs: a save takes 90 simulated seconds and KillWait is 30, so
the tasks may save if both were asked early enough before the time limit, and are killed while saving if not.
The simulated site requeues only jobs that ask for it, and gives each attempt other machines.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from ddp_course.launcher.fair_clock import FairClock

from .stand_in import EXIT_CODES, PROGRAMS

SAVE, KILL_WAIT = 90, 30  # simulated seconds
DEFAULT_NOTICE = 60  # simulated seconds between the signal and the time limit, of --signal=B:TERM
STAND_IN = Path(__file__).with_name("stand_in.py")
TASKS = ("0", "1")
# These fail here, even where Slurm is installed.
NOT_PLAYED = ("sbatch", "salloc", "sinfo", "sacct", "sattach", "sstat", "strigger")
IDLE = 0.5  # real seconds without computing, after which a script is idle
POLLING = 2.0  # real seconds after both tasks were asked, for a script that polls and is never idle
LOOK_INTERVAL = 0.1  # real seconds between two looks at the script's processes; a look takes some hundredths itself
TIMEOUT = 40.0  # seconds on a FairClock: far more than a right script needs to react


def play(script: str, folder: Path, ends: list[str]) -> dict:
    """Run the job until it is over. `ends` says what happens in each attempt: "limit", "done", "bug"
    or "killed", or "done late" or "bug late" if the tasks end so when they have been asked to save.

    Returns its last "state" and "exit_code", what it "printed" into its output file, and its "attempts": for each what
    its tasks and srun did, and how it "ended": "requeued", "exited", "limit" or "cancelled".
    """
    folder = folder.resolve()
    options = options_of(script)
    shared, programs = folder / "shared", folder / "bin"
    shared.mkdir(parents=True)
    programs.mkdir()
    for name in (*PROGRAMS, *NOT_PLAYED):
        command = shlex.join([sys.executable, "-I", "-S", str(STAND_IN), name])
        (programs / name).write_text(f'#!/usr/bin/env bash\nexec {command} "$@"\n')  # sh may drop `export -f`
        (programs / name).chmod(0o755)
    (folder / "slurm_script").write_text(script)
    record = {"attempts": []}
    for number, end in enumerate(ends):
        attempt = Attempt(folder, options, number)
        record["attempts"].append(attempt.run(end))
        record |= {"state": attempt.state, "exit_code": attempt.code}
        if attempt.ended != "requeued":
            break
    output = folder / "output"
    return record | {"printed": output.read_text(errors="replace") if output.exists() else ""}


def options_of(script: str) -> dict[str, str]:
    """The #SBATCH options before the first command, by their long names; of one given twice the last, as in Slurm."""
    options = {}
    for line in script.splitlines():
        if line.startswith("#SBATCH"):
            words = line.removeprefix("#SBATCH").partition(" #")[0].replace('"', "").replace("'", "").split()
            while words:
                name, equals_sign, value = words.pop(0).partition("=")
                if not equals_sign and words and not words[0].startswith("-"):
                    value = words.pop(0)
                if name == "--no-requeue":
                    name, value = "--requeue", "no"
                options[name] = value
        elif line.strip() and not line.startswith("#"):
            break
    return options


def signal_of(options: dict[str, str]) -> tuple[bool, signal.Signals | None, int]:
    """The value of --signal: (to the batch shell, not to the tasks; the signal or None; seconds before the limit)."""
    match = re.fullmatch(r"(?:([RB]+):)?(?:SIG)?(\w+)(?:@(\d+))?", options.get("--signal", ""))
    if not match:
        return False, None, 0
    signals = {each.name: each for each in signal.Signals} | {str(int(each)): each for each in signal.Signals}
    number = signals.get(match[2], signals.get(f"SIG{match[2].upper()}"))
    return "B" in (match[1] or ""), number, int(match[3] or DEFAULT_NOTICE)


class Attempt:
    """One run of the script on its machines.

    asked_in_time  the tasks that had been asked to save before the time limit
    left_early     whether the script ended, or gave the job back, while a task saved
    """

    def __init__(self, folder: Path, options: dict[str, str], number: int):
        self.folder, self.options, self.number = folder, options, number
        self.to_shell, self.signal, self.notice = signal_of(options)
        self.ended, self.state, self.code = "", "", 0
        self.asked_in_time, self.left_early = [], False
        self.cpu_times = {}  # of the script's processes, by process id, at the last look

    def run(self, end: str) -> dict:
        """Run the script until the attempt is over. Returns what happened, by the names that checks.py reads."""
        append = self.options.get("--open-mode", "") in ("append", "a")
        with open(self.folder / "output", "ab" if append else "wb") as output:
            self.shell = subprocess.Popen(
                ["bash", str(self.folder / "slurm_script")],
                cwd=self.folder / "shared",
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        (self.folder / "shell").write_text(str(self.shell.pid))
        try:
            self.run_until(end)
        finally:
            self.kill_all()
        return {
            "ended": self.ended,
            "code": self.code,
            "notice": self.notice if self.signal else None,
            "began": {task: [e["step"], e["folder"]] for task in TASKS for e in self.events("begins", task)[:1]},
            "asked_in_time": self.asked_in_time,
            "saved": [task for task in TASKS if self.events("saved", task)],
            "srun_killed": bool(self.events("srun killed its tasks")),
            "step_code": max((event["code"] for event in self.events("step ended")), default=None),
            "step_killed": bool(self.events("srun ended the step")),
            "scancel_killed": bool(self.events("scancel killed the tasks")),
            "left_early": self.left_early,
            "refused": bool(self.events("requeue refused")),
        }

    def run_until(self, end):
        """Let the tasks come to `end`, and note how the attempt ended then."""
        self.wait_until(lambda: len(self.events("begins")) >= 2)
        if end in EXIT_CODES:
            (self.folder / f"{end}-{self.number}").touch()
            self.wait_for_the_end()
            return self.note_end(self.ended_by_script() or "limit")
        if self.signal and self.shell.poll() is None:
            if self.to_shell:
                os.kill(self.shell.pid, self.signal)
            else:
                self.signal_tasks(self.signal)
        self.settle()
        self.asked_in_time = [event["task"] for event in self.events("asked")]
        ended = self.ended_by_script()
        self.left_early = bool(ended and self.asked_in_time)
        if not ended and len(self.asked_in_time) == 2 and self.notice >= SAVE:
            outcome = "saved" if end == "limit" else end.removesuffix(" late")
            (self.folder / f"{outcome}-{self.number}").touch()
            self.wait_for_the_end()
            ended = self.ended_by_script()
        self.note_end(ended or "limit")

    def ended_by_script(self):
        """How the script has ended the attempt; "" if it has not."""
        for event in ("requeued", "cancelled"):
            if self.events(event):
                return event
        return "exited" if self.shell.poll() is not None else ""

    def note_end(self, how):
        """Set `ended`, and the state and the exit code of the job after it."""
        self.ended = how = "requeued" if self.events("requeued") and how == "exited" else how
        code = self.shell.poll()
        self.code = (code if code is None or code >= 0 else 128 - code) if how == "exited" else None
        states = {"requeued": "PENDING", "cancelled": "CANCELLED", "limit": "TIMEOUT"}
        self.state = states.get(how) or ("FAILED" if code else "COMPLETED")

    def wait_until(self, happened):
        """Wait until `happened()`, or the script has ended the attempt, or is idle and has no task to wait for."""
        clock, idle_since = FairClock(), time.monotonic()
        while not happened() and not self.ended_by_script() and clock.seconds < TIMEOUT:
            if not self.is_idle() or any(psutil.pid_exists(pid) for pid in self.task_pids()):
                idle_since = time.monotonic()
            if time.monotonic() - idle_since > 4 * IDLE:
                return
            time.sleep(LOOK_INTERVAL)
            clock.update()

    def wait_for_the_end(self):
        self.wait_until(lambda: False)

    def settle(self):
        """Wait until script and tasks have reacted to the signal: the script has ended, is idle, or polls after both
        tasks were asked. It is idle only when each task has looked for a signal since: it may have waited for a core.
        """
        clock, idle_since, looks = FairClock(), time.monotonic(), self.looks_of_tasks()
        asked_since = idle_since
        while not self.ended_by_script() and clock.seconds < TIMEOUT:
            if not self.is_idle():
                idle_since, looks = time.monotonic(), self.looks_of_tasks()
            if len(self.events("asked")) != 2:
                asked_since = time.monotonic()
            # The first of two looks may have begun before.
            looked = all(count >= looks.get(task, 0) + 2 for task, count in self.looks_of_tasks().items())
            if time.monotonic() - idle_since > IDLE and looked or time.monotonic() - asked_since > POLLING:
                return
            time.sleep(LOOK_INTERVAL)
            clock.update()

    def looks_of_tasks(self):
        """{process: how often it has looked for a signal}, for the tasks that run and have not been asked."""
        asked, looks = [event["task"] for event in self.events("asked")], {}
        for event in self.events("begins"):
            with suppress(psutil.Error):
                runs = psutil.Process(event["pid"]).status() != psutil.STATUS_ZOMBIE
                if runs and event["task"] not in asked:
                    looks[event["pid"]] = (self.folder / f"looks-{event['pid']}").stat().st_size
        return looks

    def is_idle(self):
        """Whether the script's processes have used no CPU time since the last look. The tasks do not count."""
        cpu_times, busy = {}, False
        tasks = set(self.task_pids())
        try:
            shell = psutil.Process(self.shell.pid)
            for process in [shell, *shell.children(recursive=True)]:
                if process.pid not in tasks:
                    times = process.cpu_times()
                    cpu_times[process.pid] = times.user + times.system
                    busy |= process.status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
        except psutil.Error:
            busy = True  # a process has ended meanwhile
        earlier, self.cpu_times = self.cpu_times, cpu_times
        return not busy and cpu_times == earlier

    def events(self, name, task=None):
        """The events `name` of this attempt; with `task`, only those of that task."""
        file = self.folder / "events.jsonl"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []  # the last one may not be whole yet
        events = [json.loads(line) for line in lines]
        events = [event for event in events if event["attempt"] == self.number and event["event"] == name]
        return [event for event in events if task in (None, event.get("task"))]

    def task_pids(self):
        texts = [file.read_text() for file in (self.folder / f"steps-{self.number}").glob("*/*")]
        return [int(text) for text in texts if text]

    def signal_tasks(self, number):
        for pid in self.task_pids():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)

    def kill_all(self):
        """Kill every process that the script has started, also those that its shell has left behind."""
        with suppress(psutil.Error):
            for process in psutil.Process(self.shell.pid).children(recursive=True):
                with suppress(psutil.Error):
                    process.kill()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.shell.pid, signal.SIGKILL)
        self.signal_tasks(signal.SIGKILL)
        self.shell.wait()

    def environment(self):
        """The variables of this process, with those of Slurm replaced by the ones of this attempt."""
        first = 1 + 2 * self.number
        variables = {
            "PATH": os.pathsep.join([str(self.folder / "bin"), os.environ.get("PATH", os.defpath)]),
            "PLAY": str(self.folder),
            "PLAY_ATTEMPT": str(self.number),
            "PLAY_SHARED": str(self.folder / "shared"),
            "PLAY_REQUEUE": str(int(self.options.get("--requeue", "no") != "no")),
            "HOSTNAME": f"node{first}",
            "SLURMD_NODENAME": f"node{first}",
            "SLURM_JOB_ID": "4711",
            "SLURM_JOBID": "4711",
            "SLURM_JOB_NAME": self.options.get("--job-name", "train"),
            "SLURM_JOB_NODELIST": f"node[{first}-{first + 1}]",
            "SLURM_NODELIST": f"node[{first}-{first + 1}]",
            "SLURM_NNODES": "2",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_NTASKS": "2",
            "SLURM_SUBMIT_DIR": str(self.folder / "shared"),
        }
        if self.number:
            variables["SLURM_RESTART_COUNT"] = str(self.number)
        if "--cpus-per-task" in self.options:
            variables["SLURM_CPUS_PER_TASK"] = self.options["--cpus-per-task"]
        return {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")} | variables
