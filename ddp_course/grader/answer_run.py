"""Run a learner's answer on several ranks and hand back what each of them did.

The answer runs in processes of its own (harness/) under the launcher's supervisor: whatever it does, it ends
in time and leaves nothing behind.
"""

import os
import pickle
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ddp_doctor.launch.supervised import supervised_environment, supervisor, until_the_end

from ddp_course.grader.answer_record import Job, JobRecord, read_record
from ddp_course.grader.harness.job import Task, run_of

PACKAGE_FOLDER = Path(__file__).parents[2]
START = "ddp_course.grader.harness.start"
# The harness itself keeps to 60 seconds of its own clock for an answer. These, on the wall, are for one that the answer
# has broken: a busy machine must not come near them.
LONGEST_RUN, LONGEST_ANSWER = 300.0, 120.0


def run_answers(
    answers: list[tuple[Path, list[Job], str]], lanes: int = 1, sandbox: Sequence[str] = ()
) -> list[list[JobRecord]]:
    """Run the jobs of each answer, all in one go, and return their records in the same order.

    An answer is its file, the jobs and the package of its exercise, in which a job finds its driver.

    `lanes` answers run side by side, and one that ends its lane ends those that follow there. A job that does not use
    the answer (it has a `script`) runs once for all answers of a lane. `sandbox` is a command that runs another, shut
    in. Ends in time whatever the answers do, and leaves neither process nor file behind.
    """
    folder = Path(tempfile.mkdtemp(prefix="ddp_course_grade_"))
    tasks: list[Task] = []
    for owner, (answer, jobs, package) in enumerate(answers):
        lane = owner % lanes
        ran = {task.job for task in tasks if task.lane == lane}
        tasks += [
            Task(job, Path(job.script or answer).resolve(), owner, lane, package)
            for job in jobs
            if not (job.script and job in ran)
        ]
    (folder / "tasks.pickle").write_bytes(pickle.dumps(tasks))
    (folder / "tmp").mkdir()
    environment = supervised_environment() | {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",  # an answer is judged alike on every machine
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PACKAGE_FOLDER), os.environ.get("PYTHONPATH")])),
    }
    in_turn = -(-len(answers) // lanes)  # in the fullest lane
    limit = LONGEST_RUN + LONGEST_ANSWER * (in_turn - 1)
    # -P: nothing in this folder shadows a module that the harness imports
    command = [*sandbox, sys.executable, "-P", "-m", START, str(folder)]
    with supervisor(command, environment, folder) as process:
        until_the_end(process, limit)
        records = [read_record(folder / str(number), task.job) for number, task in enumerate(tasks)]
    by_run = {(task.lane, run_of(task.job, task.owner)): record for task, record in zip(tasks, records, strict=True)}
    return [[by_run[owner % lanes, run_of(job, owner)] for job in jobs] for owner, (_, jobs, _) in enumerate(answers)]


def collective_logs(script: str | Path, nproc: int = 2, seconds: float = 6.0) -> list[list[str]]:
    """For each rank the collectives that it starts when `script` runs on `nproc` ranks, such as "all_reduce, line 12".

    The run may fail or hang: then it is ended, after `seconds` at the latest. The last entry of a log is where
    that rank waited.
    """
    job = Job(nproc, script=Path(script).resolve(), seconds=seconds, may_fail=True)
    [[record]] = run_answers([(job.script, [job], "")])
    return record.collectives
