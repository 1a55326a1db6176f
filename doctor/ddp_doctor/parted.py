"""The verdict on ranks that did not start the same collectives."""

from ddp_doctor import source_lines, words
from ddp_doctor.alignment import Difference, differences
from ddp_doctor.seen import Job
from ddp_doctor.verdict import CURES, Verdict, in_group, innermost, stands


def parted(job: Job) -> Verdict | None:
    histories = {rank: one.history for rank, one in job.ranks.items() if one.recorded}
    if len(histories) < 2:
        return None
    found = differences(histories, _members(job))
    if not found:
        return None
    by_number = [one for one in found if one.group == "0"] or found
    if len(found) > 1 and set(found[0].have) == set(found[1].lack) and found[0].kind == found[1].kind == "missing":
        return _crossed(job, *found[:2])
    return {"missing": _missing, "unlike": _unlike, "order": _order}[by_number[0].kind](job, by_number[0])


def _members(job: Job) -> dict[str, tuple[int, ...]]:
    return {group: ranks for one in job.ranks.values() for group, ranks in one.history.groups.items()}


def _missing(job: Job, found: Difference) -> Verdict:
    one, lack = found.collective, found.lack
    at_work = job.ended != "hang" and any(job.ranks[rank].state == "computing" for rank in lack)
    never = f"{words.verb(lack, 'has', 'have')} not yet joined" if at_work else "never joined"
    sentence = (
        f"{words.ranks(lack)} {never} {words.collective(one)}{in_group(found)}, which {words.ranks(found.have)} "
        f"started {words.at(one.own)}{words.condition(one.own)}; "
    )
    absent = job.ranks[lack[0]]
    if found.instead is not None:
        sentence += (
            f"{words.ranks(lack[:1])} started {words.collective(found.instead)} {words.at(found.instead.own)}"
            f"{words.condition(found.instead.own)} instead"
        )
        if absent.running and not absent.pending() and not absent.waits_for_peers():
            sentence += f", and {stands(absent)}"
        elif not absent.running and absent.left:
            sentence += f", and {stands(absent)}"
    else:
        sentence += f"{words.ranks(lack[:1])} {stands(absent)}"
    cure = CURES["uneven" if source_lines.decisive(one.own).startswith("in the loop") else "missing"]
    if found.instead is None and absent.running:
        cure = f"Look at what {words.ranks(lack[:1])} does in that line."
    return Verdict("missing", lack, sentence, innermost(one.own), cure)


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
