"""The doctor in a notebook cell: the command that it stands for, and the page."""

import contextlib
import io
import shlex

from ddp_doctor.diagnosis import diagnose
from ddp_doctor.job import Job
from ddp_doctor.page import page
from ddp_doctor.verdict import Verdict
from ddp_doctor.watch import run_and_watch

END_AFTER = 5  # seconds without any movement after which the job is ended


def doctor_run(script, *arguments, nproc: int = 2, show: bool = True) -> tuple[Job, Verdict]:
    """Runs `script` on `nproc` ranks under the doctor; returns what was seen of the job, and the verdict.

    show: print the page; otherwise only the verdict. The ranks' own output is not shown.
    Raises InputError as run_and_watch does.
    """
    command = [str(script), *map(str, arguments)]
    print(f"python -m ddp_doctor run --nproc {nproc} --end-after {END_AFTER} {shlex.join(command)}", flush=True)
    with contextlib.redirect_stdout(io.StringIO()):
        job = run_and_watch(command[0], command[1:], nproc, end_after=END_AFTER)
    verdict = diagnose(job)
    print(page(job, verdict) if show else f"VERDICT: {verdict.sentence}.")
    return job, verdict
