"""16.1: a batch script whose job saves before its time limit, goes back into the queue, and goes on where it was."""

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong, last_lines

from .slurm_play import KILL_WAIT, SAVE
from .stand_in import BUG as CODE
from .stand_in import STEPS_PER_ATTEMPT

FUNCTION = "batch_script"
LIMITS, DONE, BUG = "two time limits", "done in time", "a task with a bug"
RUNS = {LIMITS: ["limit", "limit", "done"], DONE: ["done"], BUG: ["bug"]}
JOBS = [
    Job(
        1,
        FUNCTION,
        tuple(Call([(ends,)], given) for given, ends in RUNS.items()),
        seconds=50.0,
        patience=40.0,
        driver=True,
    )
]


def the_tasks_are_asked_before_the_limit(records):
    """In each attempt that comes near its time limit both tasks get SIGTERM, and nobody kills them."""
    for number, one, _ in limits(records):
        if len(one["in_time"]) < 2:
            begin = f"attempt {number}: "
            if one["notice"] is None:
                look = "#SBATCH --signal, above the first command: without it Slurm says nothing before the time limit"
                raise Wrong(f"{begin}no signal came before the time limit", look)
            if one["srun_killed"]:
                look = "who reaches the tasks without killing them: scancel --signal, and not a signal to srun"
                raise Wrong(f"{begin}srun was sent SIGTERM, and killed both tasks; nothing was saved", look)
            look = "scancel ends what it is not told to send a signal: --signal=TERM"
            if one["ended"] == "cancelled":
                raise Wrong(f"{begin}the job was cancelled", look)
            if one["scancel_killed"]:
                raise Wrong(f"{begin}scancel killed both tasks; nothing was saved", look)
            if one["ended"] == "requeued":
                look = "a requeue ends the tasks: first they save, and then the job goes back"
                raise Wrong(f"{begin}the job was given back before the tasks were asked to save", look)
            if one["ended"] == "exited":
                look = "a trap for the signal of #SBATCH --signal, which hands it to the tasks; then wait for them"
                raise Wrong(f"{begin}the script ended with exit code {one['code']}; {asked(one)} had got SIGTERM", look)
            look = "does the trap run? bash waits for a command in the foreground first; and whom does it tell?"
            if one["in_time"]:
                look = "the other task runs on another machine: who reaches both?"
            raise Wrong(f"{begin}at the time limit {asked(one)} had got SIGTERM", look)
    return "before each time limit both tasks are asked to save"


def both_tasks_save(records):
    """The script is there until both tasks have saved, and the signal comes early enough for that."""
    for number, one, _ in limits(records):
        if len(one["saved"]) < 2:
            if one["left_early"] and one["ended"] == "requeued":
                look = "in which order? Wait for the tasks, then scontrol requeue"
                raise Wrong(f"attempt {number}: the job was given back while the tasks were saving", look)
            if one["left_early"]:
                look = "a trap interrupts `wait`, which returns at once: when may the script go on?"
                said = f"the script ended with exit code {one['code']} while the tasks were saving"
                raise Wrong(f"attempt {number}: {said}", look)
            if one["notice"] < SAVE:
                look = f"#SBATCH --signal=...@seconds: a save takes {SAVE} s, and KillWait is only {KILL_WAIT} s"
                raise Wrong(
                    f"attempt {number}: SIGTERM came {one['notice']} s before the time limit; the tasks were killed "
                    "while saving",
                    look,
                )
            raise Wrong(f"attempt {number}: {len(one['saved'])} of 2 tasks saved", "what ends a task that is saving")
    return f"both have saved when the attempt ends, {SAVE} s later"


def the_job_goes_back_into_the_queue(records):
    """After a save the same job is requeued."""
    for number, one, _ in limits(records):
        if one["ended"] != "requeued":
            if one["refused"]:
                look = "#SBATCH --requeue, on a site where no job is requeued unless it asks for that"
                raise Wrong(f"attempt {number}: `scontrol requeue` was refused: this job may not be requeued", look)
            if one["ended"] == "limit":
                look = "what is it waiting for when srun has ended?"
                raise Wrong(f"attempt {number}: the tasks had ended, and the script was still there at the limit", look)
            look = "scontrol requeue, if the tasks ended with 75: of which command does $? tell?"
            raise Wrong(f"attempt {number}: the script ended with exit code {one['code']}, and no requeue", look)
    return "after it the job goes back into the queue"


def each_attempt_goes_on_where_it_was(records):
    """Each attempt begins at the step that the one before it has saved."""
    for case in cases(records):
        for number, one in enumerate(case.results[0]["attempts"]):
            for task, (step, folder) in one["began"].items():
                if step != number * STEPS_PER_ATTEMPT:
                    look = "RUN: one folder for all attempts, which all machines see; and `train` has to resume from it"
                    raise Wrong(
                        f"attempt {number}: task {task} began at step {step}, in {folder}; saved was step "
                        f"{number * STEPS_PER_ATTEMPT}",
                        look,
                    )
    return "each attempt goes on where the last one stopped"


def the_output_of_all_attempts_is_kept(records):
    """What the earlier attempts printed is still in the output file at the end."""
    for case in cases(records):
        result = case.results[0]
        there = result["printed"].count("task 0: begins")
        if there < len(result["attempts"]):
            look = "#SBATCH --open-mode: a requeued job truncates its output file"
            raise Wrong(f"{case.given}: the output file has {there} of {len(result['attempts'])} attempts", look)
    return "what they printed is kept"


def what_is_over_stays_over(records):
    """A job that is done completes; one with a bug fails, with the bug's exit code. Neither is requeued."""
    for case in cases(records):
        state, code, last = (case.results[0][name] for name in ("state", "exit_code", "attempts"))
        right = ("FAILED", CODE) if case.given == BUG else ("COMPLETED", 0)
        if (state, code) != right:
            ended = f"ended with exit code {code}" if last[-1]["ended"] == "exited" else f"is {state}"
            if last[-1]["ended"] == "requeued":
                ended = "went back into the queue"
            look = "the exit code of the tasks: 0 is done, 75 another attempt, anything else a bug; and end with it"
            raise Wrong(f"{case.given}: the tasks ended with exit code {right[1]}, and the job {ended}", look)
    return "what is done completes, and a bug fails and is not tried again"


CHECKS = [
    the_tasks_are_asked_before_the_limit,
    both_tasks_save,
    the_job_goes_back_into_the_queue,
    each_attempt_goes_on_where_it_was,
    the_output_of_all_attempts_is_kept,
    what_is_over_stays_over,
]


def limits(records):
    """(its number, the attempt, the case) of each attempt that came near its time limit."""
    for case in cases(records):
        result = case.results[0]
        if "attempts" not in result:
            raise Wrong(f"{FUNCTION} returned {result['returned']}, not a text", "the return value: the script's text")
        for number, one in enumerate(result["attempts"]):
            if len(one["began"]) < 2:
                said = last_lines(result["printed"]).replace("\n", " | ") or "nothing"
                look = "srun train --run-dir FOLDER, and what stands before it in the script"
                raise Wrong(f"attempt {number}: {len(one['began'])} of 2 tasks began; printed: {said}", look)
            if RUNS[case.given][number] == "limit":
                yield number, one, case


def asked(one):
    return {0: "no task", 1: "one task"}.get(len(one["in_time"]), "both tasks")
