"""Puts a run's files back to how they were at its first checkpoint, as if the job had ended there."""

import os
import shutil
from pathlib import Path

from ddp_doctor.audited import AuditedRun


def take_copies(audits: Path, into: Path) -> None:
    """Moves the copies that each rank made at the checkpoint (audit/snapshot.py) out of the folder of the audits."""
    for folder in audits.glob("*.snapshot"):
        shutil.move(folder, into / folder.name)


def checkpoint_step(run: AuditedRun) -> int | None:
    """After how many steps the files were copied; None if never, or not alike on the ranks, or the run was cut off."""
    steps = {event["steps"] for events in run.of("snapshot").values() for event in events}
    return steps.pop() if len(steps) == 1 and run.complete else None


def put_aside(run: AuditedRun, into: Path) -> dict[str, Path] | str:
    """Moves what the run has created into the new folder `into`. Returns {path: where it is now}.

    Moves nothing if the run has overwritten a file that is older than it; then returns the reason in words.
    """
    written = [next(iter(audit.of("written")), None) for audit in run.audits.values()]
    if None in written:
        return "not all that was written is known"
    new = _created(written)
    older = {path for event in written for path in event["older"]} - new  # not those that another rank has created
    if older:
        return f"the first run wrote over {min(older)}, which was there before"
    moved: dict[str, Path] = {}
    into.mkdir()
    for path in sorted(new.union(*(event["folders"] for event in written))):  # a folder moves with its files
        if os.path.lexists(path):
            moved[path] = into / str(len(moved))
            shutil.move(path, moved[path])
    return moved


def _created(written: list[dict]) -> set[str]:
    """The files that some rank has created, though another may have found them there. written: an event of each."""
    return {path for event in written for path in set(event["files"]) - set(event["older"])}


def bring_back(moved: dict[str, Path]) -> None:
    """Undoes `put_aside`, with what it has returned; replaces what a run has created there since."""
    for path, stored in moved.items():
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)  # else `stored` would be moved into it
        shutil.move(stored, path)


def set_back(run: AuditedRun, copies: Path) -> str | None:
    """Restores or removes the files that the run has written since its first checkpoint; touches no others.

    copies: the folder that `take_copies` has filled. Returns None, or in words, why nothing was done.
    """
    if checkpoint_step(run) is None:
        return "the first run saved nothing with torch.save between two steps" if run.complete else "it was cut off"
    plans, new = [], _created([event for audit in run.audits.values() for event in audit.of("written")])
    for audit in run.audits.values():
        snapshot, written = (next(iter(audit.of(kind)), None) for kind in ("snapshot", "written"))
        if written is None:
            return "not all that was written is known"
        if snapshot is None:
            continue
        if older := set(written["older"]) - set(snapshot["files"]) - new:
            return f"it also wrote over {min(older)}, which was there before: start with an empty folder"
        plans.append((snapshot, written))
    for snapshot, written in plans:
        for folder in set(written["folders"]) - set(snapshot["folders"]):
            shutil.rmtree(folder, ignore_errors=True)
        for path in written["files"]:
            if path not in snapshot["files"]:
                Path(path).unlink(missing_ok=True)
        for path, name in snapshot["files"].items():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            Path(path).unlink(missing_ok=True)
            shutil.copy2(copies / Path(name).parent.name / Path(name).name, path, follow_symlinks=False)
    return None
