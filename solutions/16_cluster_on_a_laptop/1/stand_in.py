"""The commands on PATH in place of Slurm and of the training: srun, scancel, scontrol, squeue, train ...

    python stand_in.py NAME ARGUMENT ...

The batch script starts them. They write what happened into events.jsonl, in the folder that the variable PLAY names,
where slurm_play.py reads it. Each behaves as the real one was seen to behave with Slurm 22.05, as far as question 16.1
needs it. Nothing but the standard library is loaded, so that a start takes milliseconds.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ.get("PLAY", "."))
ATTEMPT = int(os.environ.get("PLAY_ATTEMPT", "0"))
STEPS_PER_ATTEMPT = 100
EXIT_CODES = {"done": 0, "bug": 3, "killed": 137}  # of a task that is done, has a bug, or was killed for its memory
SIMULATED_SECOND = 0.01  # real seconds that `sleep 1` takes
LATER = 50  # simulated seconds that task 1 saves longer than task 0
WITH_VALUE = {  # options of srun whose value is the next word, as in -n 2
    *"-N -n -c -t -o -e -J -p -w -x -D -W --wait --nodes --ntasks --ntasks-per-node --cpus-per-task".split(),
    *"--output --error --time --signal".split(),
}


def note(event, **details):
    with open(FOLDER / "events.jsonl", "a") as file:
        file.write(json.dumps({"event": event, "attempt": ATTEMPT, **details}) + "\n")


def srun(arguments):
    """A step of two tasks, each in a session of its own, as on another machine: only srun and scancel reach them."""
    kill_on_bad_exit = False
    while arguments and arguments[0].startswith("-"):
        option = arguments.pop(0)
        if option in WITH_VALUE:
            arguments.pop(0)
        if match := re.fullmatch(r"(?:-K|--kill-on-bad-exit=?)(\d*)", option):
            kill_on_bad_exit = match[1] != "0"
    steps = FOLDER / f"steps-{ATTEMPT}"
    steps.mkdir(exist_ok=True)
    step = len(list(steps.iterdir()))
    (steps / str(step)).mkdir()
    tasks, terminated_by = [], []

    def kill_tasks(number, frame):  # "srun: forcing job termination"
        terminated_by.append(number)
        note("srun killed its tasks", signal=signal.Signals(number).name)
        for task in tasks:
            send(task.pid, signal.SIGKILL)

    def pass_on(number, frame):
        for task in tasks:
            send(task.pid, number)

    signal.signal(signal.SIGINT, lambda number, frame: print("srun: interrupt (one more within 1 sec to abort)"))
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, pass_on)
    signal.signal(signal.SIGTERM, kill_tasks)
    for task in range(2):
        added = {"SLURM_PROCID": str(task), "SLURM_NODEID": str(task), "SLURM_LOCALID": "0", "SLURM_STEP_ID": str(step)}
        added |= dict.fromkeys(("HOSTNAME", "SLURMD_NODENAME"), machine(task))
        environment, file = os.environ | added, steps / str(step) / str(task)

        def note_pid(file=file):  # in the task's process, before it begins: so scancel finds every task that has begun
            file.write_text(str(os.getpid()))

        try:
            tasks.append(subprocess.Popen(arguments, env=environment, start_new_session=True, preexec_fn=note_pid))
        except OSError as error:
            file.unlink(missing_ok=True)
            print(f"srun: error: {error}", file=sys.stderr)
            return 2
    if terminated_by:  # also the task that was started after the signal
        pass_on(signal.SIGKILL, None)
    while kill_on_bad_exit and None in (codes := [task.poll() for task in tasks]):
        if any(codes):
            note("srun ended the step")
            pass_on(signal.SIGKILL, None)
            break
        time.sleep(0.01)
    codes = [task.wait() for task in tasks]
    code = max(code if code >= 0 else 128 - code for code in codes)
    note("step ended", code=code)
    return code


def scancel(arguments):
    """Without a signal, end the job or kill a step. With one, send it to the tasks and not to the batch shell."""
    text = " ".join(arguments)
    option = re.search(r"(?:--signal[= ]|-s ?)(?:SIG)?(\w+)", text)
    targets = [word for word in arguments if re.fullmatch(r"\d+(\.\w+)?", word) and word != (option and option[1])]
    if not targets or targets[0].partition(".")[0] != os.environ["SLURM_JOB_ID"]:
        print(f"scancel: error: Invalid job id {text}", file=sys.stderr)
        return 1
    step = targets[0].partition(".")[2]
    if not option and not step:
        note("cancelled")
        return 0
    if not option:
        note("scancel killed the tasks")
    name = option[1] if option else "KILL"
    number = signal.Signals(int(name)) if name.isdigit() else getattr(signal, f"SIG{name}", None)
    if number is None:
        print(f"scancel: error: Unknown job signal: {name}", file=sys.stderr)
        return 1
    if step == "batch" or re.search(r"--batch|--full|(?<!\S)-[bf]", text):
        os.kill(int((FOLDER / "shell").read_text()), number)
        if "-f" not in text:
            return 0
    if not any([send(pid, number) for pid in tasks_of(step)]):
        print(f"scancel: error: Kill job error on job step id {targets[0]}: Invalid job id specified", file=sys.stderr)
        return 1
    return 0


def scontrol(arguments):
    if arguments[:1] == ["requeue"]:
        if os.environ["SLURM_JOB_ID"] not in arguments[1:]:
            print(f"Invalid job id specified for job {' '.join(arguments[1:])}", file=sys.stderr)
            return 1
        if os.environ["PLAY_REQUEUE"] != "1":
            print(f"Requested operation is presently disabled for job {os.environ['SLURM_JOB_ID']}", file=sys.stderr)
            note("requeue refused")
            return 1
        note("requeued")
    elif arguments[:2] == ["show", "hostnames"]:
        print(machine(0), machine(1), sep="\n")
    return 0


def machine(number):
    """The name of one of the two machines of this attempt."""
    return f"node{1 + 2 * ATTEMPT + number}"


def hostname(arguments):
    print(os.environ["HOSTNAME"])
    return 0


def squeue(arguments):
    print("RUNNING")
    return 0


def sleep(arguments):
    time.sleep(float(arguments[0].rstrip("s")) * SIMULATED_SECOND)
    return 0


def other(arguments):
    print("this command is not available in the simulated Slurm", file=sys.stderr)
    return 1


def train(arguments):
    """`train --run-dir FOLDER [--resume]`: at SIGTERM it saves, for up to 90 simulated seconds, and ends with 75."""
    options = dict(zip(arguments[::2], arguments[1::2], strict=False))
    folder = options.get("--run-dir") or next((word[10:] for word in arguments if word.startswith("--run-dir=")), "")
    if not folder:
        print("train: --run-dir is missing", file=sys.stderr)
        return 2
    task, asked, noted = os.environ.get("SLURM_PROCID", "none"), [], False
    shared = Path(os.environ["PLAY_SHARED"]).resolve()
    run = Path(folder).resolve()
    if shared not in [run, *run.parents]:  # on a disk of one machine, which the next attempt does not get
        run = FOLDER / "disks" / f"{ATTEMPT}-{task}" / run.relative_to("/")
    run.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    saved_steps = [int(path.stem) for path in run.glob("*.0") if path.with_suffix(".1").exists()]
    step = max(saved_steps, default=0) if "--resume" in arguments else 0
    looks = open(FOLDER / f"looks-{os.getpid()}", "ab", buffering=0)  # a byte for each look for a signal
    note("begins", task=task, step=step, folder=folder, pid=os.getpid())
    print(f"task {task}: begins at step {step}", flush=True)
    while not (FOLDER / f"saved-{ATTEMPT}").exists():  # unless it is killed before
        for end, code in EXIT_CODES.items():
            if (FOLDER / f"{end}-{ATTEMPT}").exists():
                note("ends", task=task, code=code)
                return code
        if asked and not noted:
            note("asked", task=task)
            noted = True
        looks.write(b".")
        time.sleep(0.01)
    time.sleep(LATER * SIMULATED_SECOND if task == "1" else 0)
    (run / f"{step + STEPS_PER_ATTEMPT}.{task}").touch()
    note("saved", task=task, step=step + STEPS_PER_ATTEMPT)
    return 75


def tasks_of(step):
    """The processes of a step, or of all steps if `step` is ""."""
    files = (FOLDER / f"steps-{ATTEMPT}").glob(f"{step or '*'}/*")
    return [int(text) for file in files if (text := file.read_text())]


def send(pid, number):
    """Send a signal to a task and all its children. Returns whether the task was there."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # macOS raises the second for a process that has ended
        return False
    return True


PROGRAMS = {program.__name__: program for program in (srun, scancel, scontrol, squeue, hostname, sleep, train)}

if __name__ == "__main__":
    sys.exit(PROGRAMS.get(sys.argv[1], other)(sys.argv[2:]))
