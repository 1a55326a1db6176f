"""Does a second start go on where the first one's checkpoint stands, with the updates that the first went on with?

The second run starts on the files as they stood at the first checkpoint of the first run (set_back.py). Each of its
updates is held against the one that the uninterrupted run made of the same weights.
"""

from ddp_doctor.audit.training import UPDATES
from ddp_doctor.audited import Audit, AuditedRun
from ddp_doctor.checks.finding import Finding

CURE = (
    "Save and load, besides the weights: optimizer, scheduler and scaler, the step (and the place in the data), and "
    "the generators of every rank."
)


def resume(first: AuditedRun, second: AuditedRun | None, why_not: str | None = None) -> Finding:
    """why_not: why the second run could not start on the files of a checkpoint in the middle of the first."""
    if second is None:
        return Finding("resume", "unknown", "the script ran only once")
    if not second.whole:
        return Finding("resume", "unknown", "the second run did not come to its end")
    begun, ended = _updates(first), _updates(second)
    if not first.of("save") or not any(first.of("save").values()):
        return Finding("resume", "unknown", "the first run saved nothing with torch.save")
    loaded = loads(first, second)
    if not begun or not ended:
        text = "loaded the checkpoint, and made no update" if loaded else "made no update"
        return Finding("resume", "unknown", f"the second run {text}")
    if why_not is not None:
        return _after_the_end(begun, ended, loaded, why_not)
    return _in_the_middle(first, second, begun, ended, loaded)


def _updates(run: AuditedRun) -> dict[int, list[dict]]:
    """Of each rank; {} unless every rank made some, with weights that can be compared."""
    found = run.of("update")
    usable = found and all(some and any(one is not None for one in some[0]["before"]) for some in found.values())
    return found if usable else {}


def loads(first: AuditedRun, second: AuditedRun) -> list[dict]:
    """Of what the first run saved, before the second's first update."""
    files = [one for found in first.of("save", "rename").values() for one in found]
    saved = {one["target"] if one["event"] == "rename" else one["path"] for one in files}
    loads = []
    for audit in second.audits.values():
        end = next((one["at"] for one in audit.of("update")), float("inf"))
        loads += [one for one in audit.between(-1, end, "load") if one["path"] in saved]
    return loads


def _wrong(text: str, loaded: list[dict], status: str = "wrong") -> Finding:
    return Finding("resume", status, text, loaded[0]["frames"] if loaded else (), "S18", CURE)


def _after_the_end(begun, ended, loaded, why_not: str) -> Finding:
    """There is no update of the first run to hold the second's against; only what is plainly missing is seen."""
    if not loaded:
        return Finding("resume", "unknown", f"{why_not}, and the second run loaded nothing of what the first had saved")
    last = {rank: some[-1] for rank, some in begun.items()}
    next_one = {rank: some[0] for rank, some in ended.items()}
    if any(one["before"] != last[rank]["after"] for rank, one in next_one.items()):
        return Finding(
            "resume",
            "unknown",
            "the second run loaded a checkpoint, and begins with other weights than the first ended with (the last "
            "save may be older)",
        )
    same = "the second run begins with the weights with which the first ended"
    if any(any(last[rank]["state"]) and not any(one["state"]) for rank, one in next_one.items()):
        return _wrong(f"{same}, but without the state of its optimizer", loaded)
    return Finding("resume", "unknown", f"{same}; the rest cannot be compared: {why_not}")


def _in_the_middle(first: AuditedRun, second: AuditedRun, begun, ended, loaded) -> Finding:
    at = _place(begun, ended, first)
    if at is None and not loaded:
        at = 0
    if at is None:
        return _wrong("the second run loaded a checkpoint, and begins with weights that the first never had", loaded)
    if at == 0:
        if loaded:
            return _wrong("the second run loads a checkpoint, and begins with the weights of the beginning", loaded)
        return Finding(
            "resume",
            "unknown",
            "the second run loaded nothing of what the first had saved (if it needs an argument for that: "
            '--resume-with "...")',
        )
    lost, status = _lost(first, second, begun, ended, at)
    count = len(begun[0])
    goes_on = f"started again on the checkpoint after update {at} of {count}, it goes on with the same weights"
    if lost:
        return _wrong(f"{goes_on}, but: {'; '.join(lost)}", loaded, status)
    compared = min(min(len(begun[rank]) - at, len(ended[rank])) for rank in begun)
    return Finding("resume", "ok", f"{goes_on}: {compared} update{'s' * (compared != 1)} equal bit for bit")


def _place(begun, ended, first: AuditedRun) -> int | None:
    """The number of updates after which the first run had the weights with which the second begins."""
    kept = {one["at"]: audit for audit in first.audits.values() for one in audit.of("kept")}
    likely = [len([one for one in audit.of("update") if one["at"] < at]) for at, audit in kept.items()]
    shortest = min(map(len, begun.values()))
    for place in [*likely, *reversed(range(shortest))]:
        if place < shortest and all(
            (some[place]["optimizer"], some[place]["before"]) == (ended[rank][0]["optimizer"], ended[rank][0]["before"])
            for rank, some in begun.items()
        ):
            return place
    return None


def _lost(first: AuditedRun, second: AuditedRun, begun, ended, at: int) -> tuple[list[str], str]:
    """What the second run goes on without, in words, and whether that is "wrong" or a "note"."""
    wrong, notes = [], []
    for rank in begun:
        pairs = list(zip(begun[rank][at:], ended[rank], strict=False))
        apart = next((i for i, (one, other) in enumerate(pairs) if not _equal(one, other)), None)
        if apart is None:
            continue
        one, other = pairs[apart]
        when = f" at its update {apart + 1}" if apart else ""
        if one["state"] != other["state"]:
            wrong.append(f"its optimizer has not the state that it had{when}")
        if one["rates"] != other["rates"]:
            wrong.append(f"its learning rate is {_rate(other)}, not {_rate(one)}{when}")
        mine, theirs = _inputs(second.audits[rank], apart), _inputs(first.audits[rank], at + apart)
        if mine != theirs:
            if at and mine == _inputs(first.audits[rank], apart):
                wrong.append(f"it reads the data of the beginning again{when}")
            else:
                notes.append(f"it reads other data than the run that was not interrupted{when}")
        elif one["gradients"] != other["gradients"]:
            notes.append(f"its gradients are other ones on the same data (dropout?){when}")
        elif not wrong:
            notes.append(f"the same gradients become another update{when}")
    whole = all(len(some) < UPDATES for some in begun.values())
    if whole and all(len(some) == len(begun[rank]) for rank, some in ended.items()):
        wrong.append(f"it makes all {len(begun[0])} updates once more: the step is not restored")
    return list(dict.fromkeys(wrong or notes)), "wrong" if wrong else "note"


def _equal(one: dict, other: dict) -> bool:
    return all(one[name] == other[name] for name in ("before", "gradients", "after", "rates"))


def _rate(update: dict) -> str:
    return f"{update['rates'][0]:.4g}" if update["rates"] else "of its own"


def _inputs(audit: Audit, number: int) -> list:
    """Checksums of what the model was called with for this update."""
    updates = audit.of("update")
    begin = updates[number - 1]["at"] if number else -1
    calls = audit.between(begin, updates[number]["at"], "call")
    return [one["inputs"] for one in calls if not one["inner"] and one["train"] and one["gradients"]]
