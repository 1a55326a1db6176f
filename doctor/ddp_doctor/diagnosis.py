"""Turns what was seen of a job into a verdict: which rank, which collective, which line.

The first difference in the ranks' collectives counts, not the last. An error that only says that a peer is gone is a
symptom; any other is a cause.
"""

from ddp_doctor.ended import after_the_end, by_error
from ddp_doctor.job import Job, Rank
from ddp_doctor.mismatch import collective_mismatch
from ddp_doctor.stalled import never_met, none_works, stopped, waits_for_another
from ddp_doctor.verdict import Verdict, stands


def diagnose(job: Job) -> Verdict:
    """The verdict on a job: one that has ended, or one that still runs or was ended by the doctor."""
    if job.ended in ("well", "failed"):
        return after_the_end(job)
    for verdict_on in (_raised, stopped, collective_mismatch, never_met, waits_for_another, none_works):
        if verdict := verdict_on(job):
            return verdict
    waiting = [rank for rank in job.ranks.values() if rank.waits_for_peers()]
    others = [rank for rank in job.ranks.values() if rank.running and rank not in waiting]
    if waiting and others:
        sentence = f"rank {waiting[0].rank} {stands(waiting[0])}; rank {others[0].rank} {stands(others[0])}"
        return Verdict("running", (), sentence + (": slow, or in a loop without an end" if others[0].works() else ""))
    return Verdict("running", (), "the ranks are at work, and no rank waits for one that will not come")


def _raised(job: Job) -> Verdict | None:
    """The verdict on an error, other than a symptom, of a rank in a job that still runs; None if there is none."""
    causes = {number: rank for number, rank in job.ranks.items() if rank.error and not rank.error.symptom}
    return by_error(job, causes) if causes else None


def long_wait(waiting: Rank, working: Rank, seconds: float) -> str:
    """A line for a job in which one rank has waited for `seconds`, and another works."""
    return (
        f"rank {waiting.rank} has waited {seconds:.0f} s, {stands(waiting).removeprefix('stands ')}; rank "
        f"{working.rank} {stands(working)}: slow, or in a loop without an end (Ctrl-C shows the page and ends the job)"
    )
