"""Run a learner's answer on several ranks and hand back what each of them did.

The answer runs in processes of its own (harness/start.py) under the launcher's supervisor: whatever it does, it ends
in time and leaves nothing behind.
"""

import pickle
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from ddp_course.lab.answer_record import Job, JobRecord, LogsOf, read_record
from ddp_course.lab.launch import supervised, supervised_environment

START = Path(__file__).parent / "harness" / "start.py"
# The harness itself keeps to 20 seconds of computing an answer. This is for a harness that the answer has broken.
LONGEST_RUN, LONGEST_ANSWER = 90.0, 40.0


def run_answers(answers: list[tuple[Path, list[Job]]]) -> list[list[JobRecord]]:
    """Run the jobs of each answer, all in one go, and return their records in the same order.

    A job that does not use the answer (it has a `script`) runs once for all of them. Ends in time whatever the
    answers do, and leaves neither process nor file behind.
    """
    folder = Path(tempfile.mkdtemp(prefix="ddp_course_grade_"))
    specs, places = [], []
    for owner, (answer, jobs) in enumerate(answers):
        numbers: dict[Job, int] = {}
        for job in jobs:
            shared = [n for n, (_, other) in enumerate(places) if other is job and job.script]
            numbers[job] = shared[0] if shared else len(places)
            if not shared:
                specs.append(_spec(job, job.script or answer, owner, numbers))
                places.append((owner, job))
    (folder / "jobs.pickle").write_bytes(pickle.dumps(specs))
    (folder / "tmp").mkdir()
    records: list[JobRecord] = []
    environment = supervised_environment() | {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",  # an answer is judged alike on every machine
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(folder / "tmp"),
    }
    output = SimpleNamespace(
        run=SimpleNamespace(timed_out=False),
        pass_on=lambda: None,
        finish=lambda: records.extend(read_record(folder / str(n), job) for n, (_, job) in enumerate(places)),
    )
    limit = LONGEST_RUN + LONGEST_ANSWER * (len(answers) - 1)
    supervised([sys.executable, str(START), str(folder)], environment, folder, limit, output)
    by_job = {place: record for place, record in zip(places, records, strict=True)}
    shared = {job: record for (_, job), record in by_job.items() if job.script}
    return [[shared.get(job) or by_job[owner, job] for job in jobs] for owner, (_, jobs) in enumerate(answers)]


def collective_logs(script: str | Path, nproc: int = 2, seconds: float = 6.0) -> list[list[str]]:
    """For each rank the collectives that it starts when `script` runs on `nproc` ranks, such as "all_reduce, line 12".

    The run may fail or hang: then it is ended, after `seconds` at the latest. The last entry of a log is where
    that rank waited.
    """
    job = Job(nproc, script=Path(script).resolve(), seconds=seconds, may_fail=True)
    [[record]] = run_answers([(job.script, [job])])
    return record.collectives


def _spec(job, path, owner, numbers):
    """`job` as plain data: the ranks know nothing of this module."""

    def plain(argument):
        return {"logs_of": numbers[argument.job]} if isinstance(argument, LogsOf) else argument

    return {
        "world": job.world,
        "path": str(Path(path).resolve()),
        "function": job.function,
        "calls": [[[plain(argument) for argument in arguments] for arguments in call.args] for call in job.calls],
        "seconds": job.seconds,
        "patience": job.patience,
        "tries": job.tries,
        "may_fail": job.may_fail,
        "driver": str(job.driver.resolve()) if job.driver else None,
        "loads": job.loads,
        "owner": owner,
    }
