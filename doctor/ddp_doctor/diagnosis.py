"""From what was seen of a job to a verdict: which rank, which collective, which line. No process is touched here.

The first difference in the ranks' collectives counts, not the last; an error that only says that a peer is gone is a
symptom, any other is a cause.
"""

from ddp_doctor.ended import after_the_end, by_error
from ddp_doctor.job import Job, Rank
from ddp_doctor.parted import parted
from ddp_doctor.still import never_met, nobody_works, stopped, waits_for_another
from ddp_doctor.verdict import Verdict, stands


def diagnose(job: Job) -> Verdict:
    """The verdict on a job that hangs, failed or ended."""
    if job.ended in ("well", "failed"):
        return after_the_end(job)
    for look in (_raised, stopped, parted, never_met, waits_for_another, nobody_works):
        if verdict := look(job):
            return verdict
    waits = [rank for rank in job.ranks.values() if rank.waits_for_peers()]
    others = [rank for rank in job.ranks.values() if rank.running and rank not in waits]
    if waits and others:
        sentence = f"rank {waits[0].rank} {stands(waits[0])}; rank {others[0].rank} {stands(others[0])}"
        return Verdict("running", (), sentence + (": slow, or in a loop without an end" if others[0].works() else ""))
    return Verdict("running", (), "the ranks are at work, and no rank waits for one that will not come")


def _raised(job: Job) -> Verdict | None:
    """An error on one rank, whose process does not come to its end, is the cause of what the others wait for."""
    causes = {number: rank for number, rank in job.ranks.items() if rank.error and not rank.error.symptom}
    return by_error(job, causes) if causes else None


def while_it_works(waits: Rank, works: Rank, seconds: float) -> str:
    """A line for a job in which one rank waits long for another that computes: slow, or in a loop without an end."""
    return (
        f"rank {waits.rank} has waited {seconds:.0f} s, {stands(waits).removeprefix('stands ')}; rank {works.rank} "
        f"{stands(works)}: slow, or in a loop without an end (Ctrl-C shows the page and ends the job)"
    )
