"""Whether it is proved that a job cannot end: what its ranks wait for cannot happen."""

from ddp_doctor.alignment import key
from ddp_doctor.history import Collective
from ddp_doctor.job import Job, Rank


def cannot_end(job: Job) -> bool:
    """Is it proved that a job in which nothing moves is a deadlock?

    Not if a rank may continue by itself, or if all are in one collective: a GPU can need long for it.
    """
    if len(job.ranks) < job.world_size or not all(rank.state in ("waiting", "ended") for rank in job.ranks.values()):
        return False
    running = {number: rank for number, rank in job.ranks.items() if rank.running}
    waiting = {number: rank for number, rank in running.items() if rank.waits_for_peers()}
    if any(rank.error and rank.error.uncaught and not rank.may_come() for rank in running.values()):
        return True
    if not all(rank.pending() for rank in waiting.values()):
        return _stacks_prove_it(running, waiting)
    can_continue = set(running) - set(waiting)
    while True:
        more = {number for number in waiting if number not in can_continue and _can_finish(job, number, can_continue)}
        if not more:
            return bool(set(waiting) - can_continue)
        can_continue |= more


def _stacks_prove_it(running: dict[int, Rank], waiting: dict[int, Rank]) -> bool:
    """Do all running ranks wait at several lines, or all in recv or init_process_group?

    Asked where a waiting rank has no pending collective in its records.
    """
    if len(waiting) < len(running) or not waiting:
        return False
    calls = {(rank.call(), tuple((frame.file, frame.line) for frame in rank.own)) for rank in waiting.values()}
    return len(calls) > 1 or all(rank.call() in ("recv", "irecv", "init_process_group") for rank in waiting.values())


def _can_finish(job: Job, number: int, can_continue: set[int]) -> bool:
    """Has each member of the rank's oldest pending collective started the same one, or can it still reach it?"""
    rank = job.ranks[number]
    collective = min(rank.pending(), key=lambda each: each.number)
    for member in rank.history.groups.get(collective.group, tuple(job.ranks)):
        if member not in job.ranks:
            continue
        counterpart = _counterpart(rank, job.ranks[member], collective)
        if counterpart is None:
            if member not in can_continue:
                return False
        elif key(counterpart, with_lines=False) != key(collective, with_lines=False):
            return False
    return True


def _counterpart(rank: Rank, peer: Rank, collective: Collective) -> Collective | None:
    """The collective of `peer` that meets `collective` of `rank`; None if it has not started it.

    It has the same position in the group's list, or the same number where a list lacks its beginning. Numbers are
    not enough: gloo also counts point-to-point messages, which differ by rank.
    """
    of_rank, of_peer = (each.history.collectives.get(collective.group, ()) for each in (rank, peer))
    if rank.history.complete and peer.history.complete:
        position = of_rank.index(collective)
        return of_peer[position] if position < len(of_peer) else None
    return next((each for each in of_peer if each.number == collective.number), None)
