"""Play Slurm for a batch script, in seconds and without Slurm: a job of two tasks that comes near its time limit.

The script runs in bash, and finds the programs of stand_in.py on PATH. The scheduler here sends what Slurm would send,
waits until nothing moves any more, and then says what time it is: a save takes 90 seconds of the play, KillWait is 30.
Its site requeues only jobs that ask for it, and gives each attempt other machines.
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

SAVE, KILL_WAIT = 90, 30  # seconds of the play
DEFAULT_NOTICE = 60  # of --signal=B:TERM
STAND_IN = Path(__file__).with_name("stand_in.py")
TASKS = ("0", "1")
NAMES = ("srun", "scancel", "scontrol", "squeue", "hostname", "sleep", "train")
NOT_PLAYED = ("sbatch", "salloc", "sinfo", "sacct", "sattach", "sstat", "strigger")  # the real ones stay out of it
QUIET, POLLING = 0.5, 2.0  # real seconds without movement; for a script that never stands still, once all are asked
LOOK = 0.1  # real seconds between two looks at the script's processes, which compute for some hundredths themselves
TOO_LONG = 40.0  # real seconds for what a right script does at once, on however busy a machine


def play(script: str, folder: Path, ends: list[str]) -> dict:
    """Run the job until it is over. `ends` says what happens in each attempt: "limit", "done" or "bug".

    Returns its last "state" and "exit_code", what it "printed" into its output file, and its "attempts": for each what
    its tasks and srun did, and how it "ended": "requeued", "exited", "limit" or "cancelled".
    """
    folder = Path(folder).resolve()
    options = options_of(script)
    shared, programs = folder / "shared", folder / "bin"
    shared.mkdir(parents=True)
    programs.mkdir()
    for name in NAMES + NOT_PLAYED:
        command = shlex.join([sys.executable, "-I", "-S", str(STAND_IN), name])
        (programs / name).write_text(f'#!/usr/bin/env bash\nexec {command} "$@"\n')  # sh may drop `export -f`
        (programs / name).chmod(0o755)
    (folder / "slurm_script").write_text(script)
    record = {"attempts": [], "state": "COMPLETED", "exit_code": 0}
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
                options[{"--no-requeue": "--requeue"}.get(name, name)] = "no" if name == "--no-requeue" else value
        elif line.strip() and not line.startswith("#"):
            break
    return options


def signal_of(options: dict[str, str]) -> tuple[bool, signal.Signals | None, int]:
    """(whether the batch shell gets it, and not the tasks; which signal, or None; seconds before the time limit)"""
    asked = re.fullmatch(r"(?:([RB]+):)?(?:SIG)?(\w+)(?:@(\d+))?", options.get("--signal", ""))
    if not asked:
        return False, None, 0
    named = {each.name: each for each in signal.Signals} | {str(int(each)): each for each in signal.Signals}
    number = named.get(asked[2], named.get(f"SIG{asked[2].upper()}"))
    return "B" in (asked[1] or ""), number, int(asked[3] or DEFAULT_NOTICE)


class Attempt:
    """One run of the script on its machines."""

    def __init__(self, folder: Path, options: dict[str, str], number: int):
        self.folder, self.options, self.number = folder, options, number
        self.ended, self.state, self.code = "", "", 0

    def run(self, end: str) -> dict:
        """The events of the attempt, by the time that the attempt is over."""
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
            self.play(end)
        finally:
            self.end_all()
        return {
            "ended": self.ended,
            "code": self.code,
            "notice": signal_of(self.options)[2] if signal_of(self.options)[1] else None,
            "began": {task: [e["step"], e["folder"]] for task in TASKS for e in self.of("begins", task)[:1]},
            "asked": [task for task in TASKS if self.of("asked", task)],
            "in_time": self.in_time,
            "saved": [task for task in TASKS if self.of("saved", task)],
            "srun_killed": bool(self.of("srun killed its tasks")),
            "scancel_killed": bool(self.of("scancel killed the tasks")),
            "left_early": self.left_early,
            "refused": bool(self.of("requeue refused")),
        }

    in_time: list = []  # the tasks that had been asked to save before the time limit
    left_early = False  # whether the script ended, or gave the job back, while a task saved

    def play(self, end):
        self.until(lambda: len(self.of("begins")) >= 2)
        if end != "limit":
            (self.folder / f"{end}-{self.number}").touch()
            self.until(lambda: False)  # that it ends
            return self.over(self.gone() or "limit")
        to_shell, number, notice = signal_of(self.options)
        if number and self.shell.poll() is None:
            if to_shell:
                os.kill(self.shell.pid, number)
            else:
                self.to_tasks(number)
        self.settle()
        self.in_time = [event["task"] for event in self.of("asked")]
        gone = self.gone()
        self.left_early = bool(gone and self.in_time)
        if not gone and len(self.in_time) == 2 and notice >= SAVE:
            (self.folder / f"saved-{self.number}").touch()
            self.until(lambda: False)
            gone = self.gone()
        self.over(gone or "limit")

    def gone(self):
        """How the script has ended the attempt; "" if it has not."""
        for event in ("requeued", "cancelled"):
            if self.of(event):
                return event
        return "exited" if self.shell.poll() is not None else ""

    def over(self, how):
        """KILL_WAIT is less than a save takes: whoever has not saved is killed before."""
        self.ended = how = "requeued" if self.of("requeued") and how == "exited" else how
        code = self.shell.poll()
        self.code = (code if code is None or code >= 0 else 128 - code) if how == "exited" else None
        states = {"requeued": "PENDING", "cancelled": "CANCELLED", "limit": "TIMEOUT"}
        self.state = states.get(how) or ("FAILED" if code else "COMPLETED")

    def until(self, happened):
        """Wait for that, or for the end of the attempt by its script; not for a script that waits for nothing."""
        began = since = time.monotonic()
        while not happened() and not self.gone() and time.monotonic() - began < TOO_LONG:
            if not self.quiet() or any(psutil.pid_exists(pid) for pid in self.task_pids()):
                since = time.monotonic()
            if time.monotonic() - since > 4 * QUIET:
                return
            time.sleep(LOOK)

    def settle(self):
        """Wait until nothing has moved for a while: by then the script has done what it does at a signal."""
        began = since = asked = time.monotonic()
        while not self.gone() and time.monotonic() - began < TOO_LONG:
            since = since if self.quiet() else time.monotonic()
            asked = asked if len(self.of("asked")) == 2 else time.monotonic()
            if time.monotonic() - since > QUIET or time.monotonic() - asked > POLLING:
                return
            time.sleep(LOOK)

    used: dict = {}

    def quiet(self):
        """Whether no process of the script has computed since the last look, the tasks left aside."""
        used, busy = {}, False
        tasks = set(self.task_pids())
        try:
            shell = psutil.Process(self.shell.pid)
            for process in [shell, *shell.children(recursive=True)]:
                if process.pid not in tasks:
                    times = process.cpu_times()
                    used[process.pid] = times.user + times.system
                    busy |= process.status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
        except psutil.Error:
            busy = True  # one has ended meanwhile
        earlier, self.used = self.used, used
        return not busy and used == earlier

    def events(self):
        file = self.folder / "events.jsonl"
        every = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [event for event in every if event["attempt"] == self.number]

    def of(self, name, task=None):
        return [event for event in self.events() if event["event"] == name and task in (None, event.get("task"))]

    def task_pids(self):
        texts = [file.read_text() for file in (self.folder / f"steps-{self.number}").glob("*/*")]
        return [int(text) for text in texts if text]

    def to_tasks(self, number):
        for pid in self.task_pids():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)

    def end_all(self):
        """Kill what the script has started, also what its shell has left behind."""
        with suppress(psutil.Error):
            for process in psutil.Process(self.shell.pid).children(recursive=True):
                with suppress(psutil.Error):
                    process.kill()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.shell.pid, signal.SIGKILL)
        self.to_tasks(signal.SIGKILL)
        self.shell.wait()

    def environment(self):
        first = 1 + 2 * self.number
        named = {
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
        named |= {"SLURM_RESTART_COUNT": str(self.number)} if self.number else {}
        if "--cpus-per-task" in self.options:
            named["SLURM_CPUS_PER_TASK"] = self.options["--cpus-per-task"]
        return {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")} | named
