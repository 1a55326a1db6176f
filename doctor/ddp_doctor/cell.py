"""The doctor in a notebook cell: the command that it stands for, and the page."""

import contextlib
import io
import shlex

from ddp_doctor.diagnosis import diagnose
from ddp_doctor.job import Job
from ddp_doctor.page import page
from ddp_doctor.verdict import Verdict
from ddp_doctor.watch import run_and_watch


def doctor_run(
    script, *arguments, nproc: int = 2, show: bool = True, end_after: float | None = 5
) -> tuple[Job, Verdict]:
    """Runs `script` on `nproc` ranks under the doctor; returns what was seen of the job, and the verdict.

    end_after: seconds without any movement after which the job is ended; None: only when it provably cannot end.
    show: print the page; otherwise only the verdict. The ranks' own output is not shown.
    Raises InputError as run_and_watch does.
    """
    command = [str(script), *map(str, arguments)]
    option = "" if end_after is None else f" --end-after {end_after:g}"
    print(f"python -m ddp_doctor run --nproc {nproc}{option} {shlex.join(command)}", flush=True)
    with contextlib.redirect_stdout(io.StringIO()):
        job = run_and_watch(command[0], command[1:], nproc, end_after=end_after)
    verdict = diagnose(job)
    print(page(job, verdict) if show else f"VERDICT: {verdict.sentence}.")
    return job, verdict
