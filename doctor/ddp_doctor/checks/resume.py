"""Checks whether a restarted run makes the same updates as the run that was not interrupted.

The second run starts on the files of the first run's first checkpoint (set_back.py). Each of its updates is compared
with the update that the first run made from the same weights.
"""

from ddp_doctor.audit.log import UPDATES
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
    if not first.first("save"):
        return Finding("resume", "unknown", "the first run saved nothing with torch.save")
    loaded = loads(first, second)
    if not begun or not ended:
        text = "loaded the checkpoint, and made no update" if loaded else "made no update"
        return Finding("resume", "unknown", f"the second run {text}")
    if why_not is not None:
        return _after_the_end(begun, ended, loaded, why_not)
    return _in_the_middle(first, second, begun, ended, loaded)


def _updates(run: AuditedRun) -> dict[int, list[dict]]:
    """The updates of each rank; {} unless every rank made one, with weights that can be compared."""
    updates = run.of("update")
    usable = updates and all(
        of_rank and any(checksum is not None for checksum in of_rank[0]["before"]) for of_rank in updates.values()
    )
    return updates if usable else {}


def loads(first: AuditedRun, second: AuditedRun) -> list[dict]:
    """The loads of files that the first run saved, before the second run's first update."""
    files = [event for events in first.of("save", "rename").values() for event in events]
    saved = {event["target"] if event["event"] == "rename" else event["path"] for event in files}
    loads = []
    for audit in second.audits.values():
        end = next((update["at"] for update in audit.of("update")), float("inf"))
        loads += [event for event in audit.between(-1, end, "load") if event["path"] in saved]
    return loads


def _wrong(text: str, loaded: list[dict], status: str = "wrong") -> Finding:
    return Finding("resume", status, text, loaded[0]["frames"] if loaded else (), "S18", CURE)


def _after_the_end(begun, ended, loaded, why_not: str) -> Finding:
    """There is no update of the first run to hold the second's against; only what is plainly missing is seen."""
    if not loaded:
        return Finding("resume", "unknown", f"{why_not}, and the second run loaded nothing of what the first had saved")
    last = {rank: some[-1] for rank, some in begun.items()}
    next_update = {rank: some[0] for rank, some in ended.items()}
    if any(update["before"] != last[rank]["after"] for rank, update in next_update.items()):
        text = "the second run loaded a checkpoint, and begins with other weights than the first ended with"
        return Finding("resume", "unknown", f"{text} (the last save may be older)")
    same = "the second run begins with the weights with which the first ended"
    if any(any(last[rank]["state"]) and not any(update["state"]) for rank, update in next_update.items()):
        return _wrong(f"{same}, but without the state of its optimizer", loaded)
    return Finding("resume", "unknown", f"{same}; the rest cannot be compared: {why_not}")


def _in_the_middle(first: AuditedRun, second: AuditedRun, begun, ended, loaded) -> Finding:
    at = _updates_before_resume(begun, ended, first)
    if at is None and not loaded:
        at = 0
    if at is None:
        return _wrong("the second run loaded a checkpoint, and begins with weights that the first never had", loaded)
    if at == 0:
        if loaded:
            return _wrong("the second run loads a checkpoint, and begins with the weights of the beginning", loaded)
        text = "the second run loaded nothing of what the first had saved"
        return Finding("resume", "unknown", f'{text} (if it needs an argument for that: --resume-with "...")')
    lost, status = _lost(first, second, begun, ended, at)
    count = len(begun[0])
    goes_on = f"started again on the checkpoint after update {at} of {count}, it goes on with the same weights"
    if lost:
        return _wrong(f"{goes_on}, but: {'; '.join(lost)}", loaded, status)
    compared = min(min(len(begun[rank]) - at, len(ended[rank])) for rank in begun)
    return Finding("resume", "ok", f"{goes_on}: {compared} update{'s' * (compared != 1)} equal bit for bit")


def _updates_before_resume(begun, ended, first: AuditedRun) -> int | None:
    """The number of updates after which the first run had the weights with which the second begins."""
    kept = {update["at"]: audit for audit in first.audits.values() for update in audit.of("kept")}
    likely = [len([update for update in audit.of("update") if update["at"] < at]) for at, audit in kept.items()]
    shortest = min(map(len, begun.values()))
    for number in [*likely, *reversed(range(shortest))]:
        if number < shortest and all(
            (some[number]["optimizer"], some[number]["before"])
            == (ended[rank][0]["optimizer"], ended[rank][0]["before"])
            for rank, some in begun.items()
        ):
            return number
    return None


def _lost(first: AuditedRun, second: AuditedRun, begun, ended, at: int) -> tuple[list[str], str]:
    """Sentences on state that the second run did not restore, and whether that is "wrong" or a "note"."""
    wrong, notes = [], []
    for rank in begun:
        pairs = list(zip(begun[rank][at:], ended[rank], strict=False))
        apart = next((i for i, (expected, resumed) in enumerate(pairs) if not _equal(expected, resumed)), None)
        if apart is None:
            continue
        expected, resumed = pairs[apart]
        when = f" at its update {apart + 1}" if apart else ""
        if expected["state"] != resumed["state"]:
            wrong.append(f"its optimizer has not the state that it had{when}")
        if expected["rates"] != resumed["rates"]:
            wrong.append(f"its learning rate is {_rate(resumed)}, not {_rate(expected)}{when}")
        inputs, expected_inputs = _inputs(second.audits[rank], apart), _inputs(first.audits[rank], at + apart)
        if inputs != expected_inputs:
            if at and inputs == _inputs(first.audits[rank], apart):
                wrong.append(f"it reads the data of the beginning again{when}")
            else:
                notes.append(f"it reads other data than the run that was not interrupted{when}")
        elif expected["gradients"] != resumed["gradients"]:
            notes.append(f"its gradients are other ones on the same data (dropout?){when}")
        elif not wrong:
            notes.append(f"the same gradients become another update{when}")
    whole = all(len(some) < UPDATES for some in begun.values())
    if whole and all(len(some) == len(begun[rank]) for rank, some in ended.items()):
        wrong.append(f"it makes all {len(begun[0])} updates once more: the step is not restored")
    return list(dict.fromkeys(wrong or notes)), "wrong" if wrong else "note"


def _equal(left: dict, right: dict) -> bool:
    return all(left[name] == right[name] for name in ("before", "gradients", "after", "rates"))


def _rate(update: dict) -> str:
    return f"{update['rates'][0]:.4g}" if update["rates"] else "of its own"


def _inputs(audit: Audit, number: int) -> list:
    """Checksums of what the model was called with for this update."""
    updates = audit.of("update")
    begin = updates[number - 1]["at"] if number else -1
    calls = audit.between(begin, updates[number]["at"], "call")
    return [call["inputs"] for call in calls if not call["inner"] and call["train"] and call["gradients"]]
