"""The verdict on ranks that did not start the same collectives."""

from ddp_doctor import source_lines, words
from ddp_doctor.alignment import Difference, differences
from ddp_doctor.history import History
from ddp_doctor.job import Job
from ddp_doctor.verdict import CURES, Verdict, cure_for, stands


def collective_mismatch(job: Job) -> Verdict | None:
    """The verdict on the first difference in the ranks' recorded collectives; None if there is none.

    None also for a job that ended well under DDP's Join, where a rank without data answers from other lines.
    """
    histories = {number: rank.history for number, rank in job.ranks.items() if rank.recorded}
    if len(histories) < 2 or (job.ended == "well" and any(map(_under_join, histories.values()))):
        return None
    members = {group: ranks for rank in job.ranks.values() for group, ranks in rank.history.groups.items()}
    per_group = differences(histories, members)
    if not per_group:
        return None
    first, *others = per_group
    if others and first.kind == others[0].kind == "missing" and set(first.have) == set(others[0].lack):
        return _crossed(first, others[0])
    return {"missing": _missing, "unlike": _unlike, "order": _order}[first.kind](job, first)


def _under_join(history: History) -> bool:
    collectives = (collective for started in history.collectives.values() for collective in started)
    return any(frame.file.endswith("/algorithms/join.py") for each in collectives for frame in each.stack)


def _missing(job: Job, difference: Difference) -> Verdict:
    """The verdict on a collective that some ranks have started and others have not."""
    collective, lack, instead = difference.collective, difference.lack, difference.instead
    absent = job.ranks[lack[0]]
    may_come = job.ended != "hang" and instead is None and any(job.ranks[rank].may_come() for rank in lack)
    never = f"{words.verb(lack, 'has', 'have')} not yet joined" if may_come else "never joined"
    sentence = (
        f"{words.ranks(lack)} {never} {words.collective_of_group(collective)}, which "
        f"{words.ranks(difference.have)} started {words.where(collective.own)}; "
    )
    if instead is not None:
        sentence += f"{words.ranks(lack[:1])} started {words.collective(instead)} {words.where(instead.own)} instead"
        idle = absent.running and not absent.pending() and not absent.waits_for_peers()
        if idle or (not absent.running and absent.exit_call):
            sentence += f", and {stands(absent)}"
    else:
        destroyed = "had called destroy_process_group, and " if absent.group_destroyed and absent.exit_code != 0 else ""
        sentence += f"{words.ranks(lack[:1])} {destroyed}{stands(absent)}"
    cure = cure_for(collective.own)
    if instead is None and absent.running:
        cure = f"Look at what {words.ranks(lack[:1])} does in that line."
    elif source_lines.deciding_condition(collective.own).startswith("in the loop"):
        _, way = source_lines.way_past(collective.own)
        sentence += f"; {way}" if way else ""
    return Verdict("missing", lack, sentence, collective.own, cure)


def _unlike(job: Job, difference: Difference) -> Verdict:
    """The verdict on one collective with other operations, sizes or types on the ranks."""
    collective, other = difference.collective, difference.other
    if collective.name != other.name:
        what = "operations"
    else:
        what = "types" if collective.sizes == other.sizes else "sizes"
    sentence = (
        f"{words.collective_of_group(collective)} has other {what} on the ranks: "
        f"{words.ranks(difference.have)} started {words.operation(collective)} of {words.tensors(collective)}, "
        f"{words.ranks(difference.lack)} {words.operation(other)} of {words.tensors(other)}, "
        f"{words.where(collective.own)}"
    )
    blamed = difference.lack
    if len(difference.have) == len(difference.lack):  # no majority: blame the ranks whose sizes have changed
        sides = ((difference.have, collective), (difference.lack, other))
        blamed = next((ranks for ranks, started in sides if _sizes_changed(job, ranks, started)), blamed)
    return Verdict("unlike", blamed, sentence, collective.own, CURES["unlike"])


def _sizes_changed(job: Job, ranks, collective) -> bool:
    """Had the first of `ranks` started a collective of other sizes when it was last at these lines?"""
    started = job.ranks[ranks[0]].history.collectives.get(collective.group, ())
    earlier = [each for each in started if each.lines == collective.lines and each.number < collective.number]
    return bool(earlier) and earlier[-1].sizes != collective.sizes


def _order(job: Job, difference: Difference) -> Verdict:
    """The verdict on the same collectives, started in another order."""
    collective, other = difference.collective, difference.other
    group = "" if collective.group == "0" else f" of group {collective.group!r}"
    sentence = (
        f"the ranks start the same collectives in another order: as number {collective.number}{group} "
        f"{words.ranks(difference.have)} started {words.operation(collective)} {words.where(collective.own)}, "
        f"{words.ranks(difference.lack)} {words.operation(other)} {words.where(other.own)}"
    )
    return Verdict("order", difference.lack, sentence, other.own, CURES["order"])


def _crossed(first: Difference, second: Difference) -> Verdict:
    """The verdict on ranks that wait for each other in two groups."""
    sentence = (
        f"two process groups are used in another order: {words.ranks(first.have)} "
        f"{words.verb(first.have, 'waits', 'wait')} in {words.collective_of_group(first.collective, always=True)} "
        f"{words.at(first.collective.own)}, {words.ranks(second.have)} in "
        f"{words.collective_of_group(second.collective, always=True)} {words.at(second.collective.own)}"
    )
    ranks = tuple(sorted({*first.have, *second.have}))
    return Verdict("order", ranks, sentence, second.collective.own, CURES["order"])
