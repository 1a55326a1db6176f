"""Whether it is proved that a job can no longer come to its end: what its ranks wait for cannot happen."""

from ddp_doctor.alignment import key
from ddp_doctor.history import Collective
from ddp_doctor.job import Job, Rank


def cannot_end(job: Job) -> bool:
    """Is a job in which nothing moves a deadlock?

    Not if a rank may wake by itself, or if all wait in one collective: a GPU can need long for it.
    """
    if len(job.ranks) < job.world_size or not all(rank.state in ("waiting", "ended") for rank in job.ranks.values()):
        return False
    running = {number: rank for number, rank in job.ranks.items() if rank.running}
    waiting = {number: rank for number, rank in running.items() if rank.waits_for_peers()}
    if any(rank.error and rank.error.uncaught and not rank.may_come() for rank in running.values()):
        return True
    if not all(rank.pending() for rank in waiting.values()):
        return _wait_by_their_stacks(running, waiting)
    hopeful = set(running) - set(waiting)
    while True:
        more = {number for number in waiting if number not in hopeful and _can_end(job, number, hopeful)}
        if not more:
            return bool(set(waiting) - hopeful)
        hopeful |= more


def _wait_by_their_stacks(running: dict[int, Rank], waiting: dict[int, Rank]) -> bool:
    """Where the records do not tell: all wait, for a message, at several lines, or to meet at all."""
    if len(waiting) < len(running) or not waiting:
        return False
    calls = {(rank.call(), tuple((frame.file, frame.line) for frame in rank.own)) for rank in waiting.values()}
    return len(calls) > 1 or all(rank.call() in ("recv", "irecv", "init_process_group") for rank in waiting.values())


def _can_end(job: Job, number: int, hopeful: set[int]) -> bool:
    """Has each peer of the rank's oldest open collective started the same, or may it still?"""
    rank = job.ranks[number]
    collective = min(rank.pending(), key=lambda each: each.number)
    members = rank.history.groups.get(collective.group, tuple(job.ranks))
    return all(
        peer in hopeful if theirs is None else key(collective, lined=False) == key(theirs, lined=False)
        for peer in members
        if peer in job.ranks
        for theirs in [_counterpart(rank, job.ranks[peer], collective)]
    )


def _counterpart(rank: Rank, peer: Rank, collective: Collective) -> Collective | None:
    """By their order: gloo also counts messages from rank to rank."""
    own, theirs = (each.history.collectives.get(collective.group, ()) for each in (rank, peer))
    if rank.history.whole and peer.history.whole:
        return dict(enumerate(theirs)).get(own.index(collective))
    return next((each for each in theirs if each.number == collective.number), None)
