"""Checks whether a restarted run makes the same optimizer steps as the run that was not interrupted.

The second run starts on the files of the first run's first checkpoint (set_back.py). Its first step is compared with
the step that the first run made from the same weights, its later steps with those that follow.
"""

from ddp_doctor.audit.log import MAX_STEPS
from ddp_doctor.audited import Audit, AuditedRun
from ddp_doctor.checks.finding import Finding, ok, require, unknown

COMPARED = ("weights_before", "gradients", "weights_after", "rates")  # of the steps of two runs
CURE = (
    "Save and load, besides the weights: optimizer, scheduler and scaler, the step count (and the position in the "
    "data), and the generators of every rank."
)


def resume(first: AuditedRun) -> Finding:
    second = first.second
    require(second is not None, "the script ran only once")
    require(second.complete, "the second run did not come to its end")
    steps, resumed_steps = _steps(first), _steps(second)
    require(first.first("save"), "the first run saved nothing with torch.save")
    loaded = loads(first, second)
    text = "loaded the checkpoint, and made no step" if loaded else "made no step"
    require(steps and resumed_steps, f"the second run {text}")
    if first.not_set_back is not None:
        return _after_the_end(steps, resumed_steps, loaded, first.not_set_back)
    return _in_the_middle(first, second, steps, resumed_steps, loaded)


def _steps(run: AuditedRun) -> dict[int, list[dict]]:
    """The optimizer steps of each rank; {} unless every rank made one, with weights that can be compared."""
    steps = run.of("step")
    usable = steps and all(
        rank_steps and any(checksum is not None for checksum in rank_steps[0]["weights_before"])
        for rank_steps in steps.values()
    )
    return steps if usable else {}


def loads(first: AuditedRun, second: AuditedRun) -> list[dict]:
    """The load events of the second run before its first step, of files that the first run saved."""
    saved = {event["path"] for events in first.of("save", "rename").values() for event in events}
    loads = []
    for audit in second.audits.values():
        end = next((step["at"] for step in audit.of("step")), float("inf"))
        loads += [event for event in audit.between(-1, end, "load") if event["path"] in saved]
    return loads


def _wrong(text: str, loaded: list[dict], status: str = "wrong") -> Finding:
    return Finding(status, text, loaded[0]["frames"] if loaded else (), "S18", CURE)


def _after_the_end(steps, resumed_steps, loaded, why_not: str) -> Finding:
    """Compares the second run's start with the first's end: there is no step of the first to compare its steps with."""
    require(loaded, f"{why_not}, and the second run loaded nothing of what the first had saved")
    last = {rank: rank_steps[-1] for rank, rank_steps in steps.items()}
    resumed = {rank: rank_steps[0] for rank, rank_steps in resumed_steps.items()}
    if any(step["weights_before"] != last[rank]["weights_after"] for rank, step in resumed.items()):
        text = "the second run loaded a checkpoint, and begins with other weights than the first ended with"
        return unknown(f"{text} (the last save may be older)")
    same = "the second run begins with the weights with which the first ended"
    if any(any(last[rank]["state"]) and not any(step["state"]) for rank, step in resumed.items()):
        return _wrong(f"{same}, but without the state of its optimizer", loaded)
    return unknown(f"{same}; the rest cannot be compared: {why_not}")


def _in_the_middle(first: AuditedRun, second: AuditedRun, steps, resumed_steps, loaded) -> Finding:
    at = _steps_before_resume(steps, resumed_steps, first)
    if at is None and not loaded:
        at = 0
    if at is None:
        return _wrong("the second run loaded a checkpoint, and begins with weights that the first never had", loaded)
    if at == 0:
        if loaded:
            return _wrong("the second run loads a checkpoint, and begins with the weights of the beginning", loaded)
        text = "the second run loaded nothing of what the first had saved"
        return unknown(f'{text} (if it needs an argument for that: --resume-with "...")')
    differences, status = _differences(first, second, steps, resumed_steps, at)
    count = len(steps[0])
    goes_on = f"started again on the checkpoint after step {at} of {count}, it goes on with the same weights"
    if differences:
        return _wrong(f"{goes_on}, but: {'; '.join(differences)}", loaded, status)
    compared = min(min(len(steps[rank]) - at, len(resumed_steps[rank])) for rank in steps)
    return ok(f"{goes_on}: {compared} step{'s' * (compared != 1)} equal bit for bit")


def _steps_before_resume(steps, resumed_steps, first: AuditedRun) -> int | None:
    """The number of steps after which the first run had the weights with which the second begins; None if never."""
    snapshots = [(audit, event["at"]) for audit in first.audits.values() for event in audit.of("snapshot")]
    likely = [len([step for step in audit.of("step") if step["at"] < at]) for audit, at in snapshots]
    shortest = min(map(len, steps.values()))
    for number in [*likely, *reversed(range(shortest))]:
        if number < shortest and all(
            all(rank_steps[number][name] == resumed_steps[rank][0][name] for name in ("optimizer", "weights_before"))
            for rank, rank_steps in steps.items()
        ):
            return number
    return None


def _differences(first: AuditedRun, second: AuditedRun, steps, resumed_steps, at: int) -> tuple[list[str], str]:
    """Sentences on what the second run did not restore, and whether that is "wrong" or a "note"."""
    wrong, notes = [], []
    for rank in steps:
        pairs = list(zip(steps[rank][at:], resumed_steps[rank], strict=False))
        unequal = next((i for i, (a, b) in enumerate(pairs) if any(a[name] != b[name] for name in COMPARED)), None)
        if unequal is None:
            continue
        expected, resumed = pairs[unequal]
        when = f" at its step {unequal + 1}" if unequal else ""
        if expected["state"] != resumed["state"]:
            wrong.append(f"its optimizer does not have the state that it had{when}")
        if expected["rates"] != resumed["rates"]:
            wrong.append(f"its learning rate is {_rate(resumed)}, not {_rate(expected)}{when}")
        inputs, expected_inputs = _inputs(second.audits[rank], unequal), _inputs(first.audits[rank], at + unequal)
        if inputs != expected_inputs:
            if at and inputs == _inputs(first.audits[rank], unequal):
                wrong.append(f"it reads the data of the beginning again{when}")
            else:
                notes.append(f"it reads other data than the run that was not interrupted{when}")
        elif expected["gradients"] != resumed["gradients"]:
            notes.append(f"its gradients are other ones on the same data (dropout?){when}")
        elif not wrong:
            notes.append(f"its optimizer makes another step from the same gradients{when}")
    all_recorded = all(len(rank_steps) < MAX_STEPS for rank_steps in steps.values())
    if all_recorded and all(len(rank_steps) == len(steps[rank]) for rank, rank_steps in resumed_steps.items()):
        wrong.append(f"it makes all {len(steps[0])} steps once more: the step count is not restored")
    return list(dict.fromkeys(wrong or notes)), "wrong" if wrong else "note"


def _rate(step: dict) -> str:
    return f"{step['rates'][0]:.4g}" if step["rates"] else "of its own"


def _inputs(audit: Audit, number: int) -> list:
    """Checksums of what the model was called with in training for step `number`, counted from 0."""
    steps = audit.of("step")
    begin, end = steps[number - 1]["at"] if number else -1, steps[number]["at"]
    return [call["inputs"] for call in audit.training_calls() if begin < call["at"] < end]
