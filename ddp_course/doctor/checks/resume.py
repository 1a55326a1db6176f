"""Does a second start load what the first has saved? Whether it then goes on bit by bit cannot be seen so."""

from ddp_course.doctor.audited import Seen
from ddp_course.doctor.checks.finding import Finding


def resume(first: Seen, second: Seen | None) -> Finding:
    if second is None:
        return Finding("resume", "unknown", "the script ran only once")
    files = [one for found in first.of("save", "rename").values() for one in found]
    saved = {one["target"] if one["event"] == "rename" else one["path"] for one in files}
    if not saved:
        return Finding("resume", "unknown", "the first run saved nothing with torch.save")
    loads = {rank: [one for one in found if one["path"] in saved] for rank, found in second.of("load").items()}
    before = {rank: _first_update(audit.of("load", "update")) for rank, audit in second.audits.items()}
    if not any(loads.values()):
        return Finding("resume", "unknown", "the second run loaded nothing of what the first had saved")
    ended, begun = _weights(first, last=True), _weights(second, last=False)
    if ended and begun and any(before.values()):
        if all(ended.get(rank) == begun.get(rank) for rank in begun):
            return Finding(
                "resume",
                "unknown",
                "the second run begins with the weights with which the first ended; its "
                "optimizer, data and random numbers are not compared",
            )
        return Finding(
            "resume",
            "unknown",
            "the second run loaded a checkpoint, and begins with other weights than the "
            "first ended with (the last save may be older)",
        )
    return Finding("resume", "unknown", "the second run loaded the checkpoint, and made no update")


def _first_update(events) -> bool:
    """Does a load come before the first update?"""
    return bool(events) and events[0]["event"] == "load"


def _weights(seen: Seen, last: bool):
    found = {}
    for rank, updates in seen.of("update").items():
        if updates:
            found[rank] = updates[-1]["after"] if last else updates[0]["before"]
    return found
