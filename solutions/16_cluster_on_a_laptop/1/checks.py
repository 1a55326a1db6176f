"""16.1: a batch script whose job saves before its time limit, goes back into the queue, and continues where it was."""

from ddp_course.grader.verdict import last_lines
from ddp_course.grader.vocabulary import Wrong, check, driver_job, expect

from .slurm_play import KILL_WAIT, SAVE
from .stand_in import EXIT_CODES, STEPS_PER_ATTEMPT

FUNCTION = "batch_script"
REQUEUE_CODE = 75
LATE_BUG = "a bug after SIGTERM"
RUNS = {  # how each attempt ends
    "two time limits": ["limit", "limit", "done"],
    "done in time": ["done"],
    "a task with a bug": ["bug"],
    "a task that was killed": ["killed"],
    "done after SIGTERM": ["done late"],
    LATE_BUG: ["bug late"],
}
CALLS = {scenario: (ends,) for scenario, ends in RUNS.items()}
JOBS = [driver_job(1, FUNCTION, CALLS, seconds=50.0, patience=40.0)]


@check("before each time limit both tasks are asked to save", begin="")
def the_tasks_are_asked_before_the_limit(case):
    for begin, attempt in attempts_at_limit(case):
        if len(attempt["asked_in_time"]) >= 2:
            continue
        expect(
            attempt["notice"] is not None,
            f"{begin}no signal came before the time limit",
            "#SBATCH --signal, above the first command: without it Slurm sends no signal before the time limit",
        )
        expect(
            not attempt["srun_killed"],
            f"{begin}srun was sent SIGTERM, and killed both tasks; nothing was saved",
            "which command sends the tasks a signal without killing them: scancel --signal, and not a signal to srun",
        )
        look_at = "scancel without --signal=TERM ends the job or kills its tasks"
        expect(attempt["ended"] != "cancelled", f"{begin}the job was cancelled", look_at)
        expect(not attempt["scancel_killed"], f"{begin}scancel killed both tasks; nothing was saved", look_at)
        expect(
            attempt["ended"] != "requeued",
            f"{begin}the job was given back before the tasks were asked to save",
            "a requeue ends the tasks: first they save, and then the job goes back",
        )
        expect(
            attempt["ended"] != "exited",
            f"{begin}the script ended with exit code {attempt['code']}; {tasks_asked(attempt)} had got SIGTERM",
            "a trap for the signal of #SBATCH --signal, which passes it on to the tasks; then wait for them",
        )
        raise Wrong(
            f"{begin}at the time limit {tasks_asked(attempt)} had got SIGTERM",
            "the other task runs on another machine: which command sends a signal to both?"
            if attempt["asked_in_time"]
            else "does the trap run? bash waits for a command in the foreground first; and what does it send to whom?",
        )


@check(f"both have saved when the attempt ends, {SAVE} s later", begin="")
def both_tasks_save(case):
    for begin, attempt in attempts_at_limit(case):
        if len(attempt["saved"]) == 2:
            continue
        expect(
            not attempt["left_early"] or attempt["ended"] != "requeued",
            f"{begin}the job was given back while the tasks were saving",
            "the order of the commands: wait for the tasks, then scontrol requeue",
        )
        expect(
            not attempt["left_early"],
            f"{begin}the script ended with exit code {attempt['code']} while the tasks were saving",
            "a trap interrupts `wait`, which returns at once: when may the script continue?",
        )
        expect(
            attempt["notice"] >= SAVE,
            f"{begin}SIGTERM came {attempt['notice']} s before the time limit; the tasks were killed while saving",
            f"#SBATCH --signal=...@seconds: a save takes {SAVE} s, and KillWait is only {KILL_WAIT} s",
        )
        expect(
            not attempt["step_killed"],
            f"{begin}task 0 had saved and ended with {REQUEUE_CODE}; srun killed task 1, which was still saving",
            "srun's options: --kill-on-bad-exit ends all tasks when one ends with an exit code other than 0",
        )
        raise Wrong(f"{begin}{len(attempt['saved'])} of 2 tasks saved", "what ended a task while it was saving?")


@check("after it the job goes back into the queue", begin="")
def the_job_goes_back_into_the_queue(case):
    for begin, attempt in attempts_at_limit(case):
        if attempt["ended"] == "requeued":
            continue
        expect(
            not attempt["refused"],
            f"{begin}`scontrol requeue` was refused: this job may not be requeued",
            "#SBATCH --requeue, on a site where no job is requeued unless it asks for that",
        )
        expect(
            attempt["ended"] != "limit",
            f"{begin}the tasks had ended, and the script was still there at the limit",
            "what is it waiting for when srun has ended?",
        )
        raise Wrong(
            f"{begin}the script ended with exit code {attempt['code']}, and no requeue",
            "scontrol requeue, if the tasks ended with 75: which command's exit code is in $?",
        )


@check("each attempt goes on where the last one stopped", begin="")
def each_attempt_resumes_where_the_last_stopped(case):
    for number, attempt in enumerate(case.results[0]["attempts"]):
        saved = number * STEPS_PER_ATTEMPT
        for task, (step, folder) in attempt["began"].items():
            expect(
                step == saved,
                f"attempt {number}: task {task} began at step {step}, in {folder}; saved was step {saved}",
                "RUN: one folder for all attempts, which all machines see; and `train` has to resume from it",
            )


@check("what they printed is kept", begin="{scenario}: ")
def the_output_of_all_attempts_is_kept(case):
    result = case.results[0]
    in_file, attempts = result["printed"].count("task 0: begins"), len(result["attempts"])
    expect(
        in_file >= attempts,
        f"the output file has {in_file} of {attempts} attempts",
        "#SBATCH --open-mode: a requeued job truncates its output file",
    )


@check("what is done completes, and a bug fails and is not tried again", begin="{scenario}: ")
def what_is_over_stays_over(case):
    state, code, attempts = (case.results[0][name] for name in ("state", "exit_code", "attempts"))
    right_code = EXIT_CODES[RUNS[case.scenario][-1].removesuffix(" late")]
    if case.scenario == LATE_BUG and attempts[-1]["step_code"] == REQUEUE_CODE:
        return  # each task runs `train` in a shell that ends with 75 after SIGTERM, whatever `train` ended with
    ended = f"ended with exit code {code}" if attempts[-1]["ended"] == "exited" else f"is {state}"
    if attempts[-1]["ended"] == "requeued":
        ended = "went back into the queue"
    expect(
        (state, code) == ("FAILED" if right_code else "COMPLETED", right_code),
        f"the tasks ended with exit code {right_code}, and the job {ended}",
        "the exit code of the tasks: 0 is done, 75 another attempt, anything else a bug; and end with it",
    )


def attempts_at_limit(case):
    """(the beginning of a message, the attempt) for each attempt that came near its time limit."""
    result = case.results[0]
    if "attempts" not in result:
        raise Wrong(f"{FUNCTION} returned {result['returned']}, not a text", "the return value: the script's text")
    for number, attempt in enumerate(result["attempts"]):
        begin = f"attempt {number}: "
        printed = last_lines(result["printed"]).replace("\n", " | ") or "nothing"
        expect(
            len(attempt["began"]) == 2,
            f"{begin}{len(attempt['began'])} of 2 tasks began; printed: {printed}",
            "srun train --run-dir FOLDER, and what stands before it in the script",
        )
        if RUNS[case.scenario][number] == "limit":
            yield begin, attempt


def tasks_asked(attempt):
    return {0: "no task", 1: "one task"}.get(len(attempt["asked_in_time"]), "both tasks")
