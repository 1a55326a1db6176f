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

    end_after: seconds without any movement after which the job is ended; None: never, unless it cannot go on.
    show: print the page; otherwise the verdict alone. The ranks' own output is not shown.
    Raises InputError if there is no such script.
    """
    words = [str(script), *map(str, arguments)]
    ending = "" if end_after is None else f" --end-after {end_after:g}"
    print(f"python -m ddp_doctor run --nproc {nproc}{ending} {shlex.join(words)}", flush=True)
    with contextlib.redirect_stdout(io.StringIO()):
        job = run_and_watch(words[0], words[1:], nproc, end_after=end_after)
    verdict = diagnose(job)
    print(page(job, verdict) if show else f"VERDICT: {verdict.sentence}.")
    return job, verdict
