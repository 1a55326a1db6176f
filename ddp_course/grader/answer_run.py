"""Run learners' answers on several ranks and return a record of what each rank did.

An answer runs in processes of its own (harness/) under the doctor's supervisor, which ends them in time, removes their
files and leaves no process behind, whatever the answer does.
"""

import os
import pickle
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ddp_doctor.launch.supervised import supervised_environment, supervisor, until_the_end

from ddp_course.grader.answer_record import JobRecord, read_record
from ddp_course.grader.harness.job import Job, Task, run_key
from ddp_course.launcher.fair_clock import FairClock

PACKAGE_FOLDER = Path(__file__).parents[2]
START = "ddp_course.grader.harness.start"
# Seconds on a FairClock: for the first answer of a lane, and for each further one. They end a harness that an answer
# has broken. The harness's own limit, 60 s of its FairClock per answer, comes long before them.
LONGEST_RUN, LONGEST_ANSWER = 300.0, 120.0
# So many times these limits, on the wall, a busy machine may keep a run waiting for a core. Then it is given up.
MOST_WAITING = 3.0


def run_answers(
    answers: list[tuple[Path, list[Job], str]], lanes: int = 1, sandbox: Sequence[str] = ()
) -> list[list[JobRecord]]:
    """Run the jobs of all answers with one start of the harness; return the records of each answer, in order.

    answers   (file, jobs, package) of each: the package is that of its exercise, in which a job finds driver.py
    lanes     how many answers run at the same time; one that kills the process of its lane loses the later ones there
    sandbox   words to put before the harness's command, to isolate it: see batch.sandbox_command

    A job with a `script` does not use the answer, and runs once for all answers of a lane. Returns in time whatever
    the answers do, and leaves neither process nor file behind.
    """
    folder = Path(tempfile.mkdtemp(prefix="ddp_course_grade_"))
    tasks = [
        Task(job, Path(job.script or answer).resolve(), number, number % lanes, package)
        for number, (answer, jobs, package) in enumerate(answers)
        for job in jobs
    ]
    (folder / "tasks.pickle").write_bytes(pickle.dumps(tasks))
    (folder / "tmp").mkdir()
    environment = supervised_environment() | {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",  # an answer gets the same verdict on every machine
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PACKAGE_FOLDER), os.environ.get("PYTHONPATH")])),
    }
    answers_per_lane = -(-len(answers) // lanes)  # in the fullest lane
    limit = LONGEST_RUN + LONGEST_ANSWER * (answers_per_lane - 1)
    # -P: no file in the current folder shadows a module that the harness imports
    command = [*sandbox, sys.executable, "-P", "-m", START, str(folder)]
    with supervisor(command, environment, folder) as process:
        clock = FairClock(sample_interval=5.0)  # long: it need not be exact, and each sample costs time
        report = until_the_end(process, MOST_WAITING * limit, stop_when=lambda: clock.update() or clock.seconds > limit)
        busy = f"other programs kept the machine so busy that it had no end after {MOST_WAITING * limit / 60:g} minutes"
        gave_up = busy if report["timed_out"] and clock.seconds <= limit else ""
        records = _records_by_run(folder, tasks)
    by_answer = [
        [records[number % lanes, run_key(job, number)] for job in jobs] for number, (_, jobs, _) in enumerate(answers)
    ]
    for answer_records in by_answer:
        begun = any(record.started for record in answer_records if not record.job.script)
        for record in answer_records:
            if not record.finished:
                record.cut_off = gave_up or ("" if begun else "the process that runs the ranks ended before it began")
    return by_answer


def _records_by_run(folder: Path, tasks: list[Task]) -> dict[tuple, JobRecord]:
    """The record of each run, by lane and run key: that of the task that started, if one of those with the key did."""
    records: dict[tuple, JobRecord] = {}
    for number, task in enumerate(tasks):
        key = task.lane, run_key(task.job, task.answer_number)
        record = read_record(folder / str(number), task.job)
        if record.started or key not in records:
            records[key] = record
    return records


def collective_logs(script: str | Path, nproc: int, seconds: float) -> list[list[str]]:
    """For each rank the collectives that it starts when `script` runs on `nproc` ranks, such as "all_reduce, line 12".

    The run may fail or hang: a hanging one is ended after `seconds` at the latest, and the last entry of each rank's
    log is the collective in which it waited, if it waited in one.
    """
    job = Job(nproc, script=Path(script).resolve(), seconds=seconds, may_fail=True)
    [[record]] = run_answers([(job.script, [job], "")])
    return record.collectives
