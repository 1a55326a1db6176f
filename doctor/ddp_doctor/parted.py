"""The verdict on ranks that did not start the same collectives."""

from ddp_doctor import source_lines, words
from ddp_doctor.alignment import Difference, differences
from ddp_doctor.history import History
from ddp_doctor.seen import Job
from ddp_doctor.verdict import CURES, Verdict, cure_for, in_group, innermost, stands


def parted(job: Job) -> Verdict | None:
    histories = {rank: one.history for rank, one in job.ranks.items() if one.recorded}
    if len(histories) < 2 or (job.ended == "well" and any(map(_under_join, histories.values()))):
        return None
    found = differences(histories, _members(job))
    if not found:
        return None
    by_number = [one for one in found if one.group == "0"] or found
    if len(found) > 1 and set(found[0].have) == set(found[1].lack) and found[0].kind == found[1].kind == "missing":
        return _crossed(job, *found[:2])
    return {"missing": _missing, "unlike": _unlike, "order": _order}[by_number[0].kind](job, by_number[0])


def _under_join(history: History) -> bool:
    """Join lets a rank that has no more data answer the others' collectives, from lines of its own."""
    frames = (frame for each in history.collectives.values() for one in each for frame in one.stack)
    return any(frame.file.endswith("/algorithms/join.py") for frame in frames)


def _members(job: Job) -> dict[str, tuple[int, ...]]:
    return {group: ranks for one in job.ranks.values() for group, ranks in one.history.groups.items()}


def _missing(job: Job, difference: Difference) -> Verdict:
    collective, lack, instead = difference.collective, difference.lack, difference.instead
    absent = job.ranks[lack[0]]
    may_come = job.ended != "hang" and instead is None and any(job.ranks[rank].may_come() for rank in lack)
    never = f"{words.verb(lack, 'has', 'have')} not yet joined" if may_come else "never joined"
    sentence = (
        f"{words.ranks(lack)} {never} {words.collective(collective)}{in_group(difference)}, which "
        f"{words.ranks(difference.have)} started {words.at(collective.own)}{words.condition(collective.own)}; "
    )
    if instead is not None:
        sentence += (
            f"{words.ranks(lack[:1])} started {words.collective(instead)} {words.at(instead.own)}"
            f"{words.condition(instead.own)} instead"
        )
        if (absent.running and not absent.pending() and not absent.waits_for_peers()) or (
            not absent.running and absent.left
        ):
            sentence += f", and {stands(absent)}"
    else:
        destroyed = "had called destroy_process_group, and " if absent.group_destroyed and absent.exit_code != 0 else ""
        sentence += f"{words.ranks(lack[:1])} {destroyed}{stands(absent)}"
    cure = cure_for(collective.own)
    if instead is None and absent.running:
        cure = f"Look at what {words.ranks(lack[:1])} does in that line."
    elif source_lines.decisive(collective.own).startswith("in the loop"):
        _, way = source_lines.way_past(collective.own)
        sentence += f"; {way}" if way else ""
    return Verdict("missing", lack, sentence, innermost(collective.own), cure)


def _unlike(job: Job, found: Difference) -> Verdict:
    one, other = found.collective, found.other
    what = "types" if one.sizes == other.sizes and one.name == other.name else "sizes"
    what = "operations" if one.name != other.name else what
    sentence = (
        f"{words.collective(one)}{in_group(found)} has other {what} on the ranks: {words.ranks(found.have)} "
        f"started {one.name.replace('_', '-')} of {words.tensors(one)}, {words.ranks(found.lack)} "
        f"{other.name.replace('_', '-')} of {words.tensors(other)}, {words.at(one.own)}{words.condition(one.own)}"
    )
    odd = found.lack
    if len(found.have) == len(found.lack):  # no majority: the one that differs from what it did on this line before
        both = ((found.have, one), (found.lack, other))
        odd = next((ranks for ranks, mine in both if _changed(job, ranks, mine)), odd)
    return Verdict("unlike", odd, sentence, innermost(one.own), CURES["unlike"])


def _changed(job: Job, ranks, one) -> bool:
    earlier = [
        each
        for each in job.ranks[ranks[0]].history.collectives.get(one.group, ())
        if each.lines == one.lines and each.number < one.number
    ]
    return bool(earlier) and earlier[-1].sizes != one.sizes


def _order(job: Job, found: Difference) -> Verdict:
    one, other = found.collective, found.other
    sentence = (
        f"the ranks start the same collectives in another order: as number {one.number}{in_group(found)} "
        f"{words.ranks(found.have)} started {one.name.replace('_', '-')} {words.at(one.own)}"
        f"{words.condition(one.own)}, {words.ranks(found.lack)} {other.name.replace('_', '-')} "
        f"{words.at(other.own)}{words.condition(other.own)}"
    )
    return Verdict("order", found.lack, sentence, innermost(other.own), CURES["order"])


def _crossed(job: Job, one: Difference, other: Difference) -> Verdict:
    sentence = (
        f"two process groups are used in another order: {words.ranks(one.have)} waits in "
        f"{words.collective(one.collective)}{in_group(one, always=True)} {words.at(one.collective.own)}, "
        f"{words.ranks(other.have)} in {words.collective(other.collective)}{in_group(other, always=True)} "
        f"{words.at(other.collective.own)}"
    )
    ranks = tuple(sorted({*one.have, *other.have}))
    return Verdict("order", ranks, sentence, innermost(other.collective.own), CURES["order"])
