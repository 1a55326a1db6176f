"""What the ranks write: who, to which file, and whether a kill in the middle leaves a whole one."""

import os
from pathlib import Path

from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks.finding import Finding


def _name(path: str) -> str:
    short = os.path.relpath(path)
    return path if short.startswith("../..") else short


def one_writer(run: AuditedRun) -> Finding:
    writers: dict[str, dict[int, dict]] = {}
    for rank, found in run.of("open", "save", "rename").items():
        for one in found:
            path = one["target"] if one["event"] == "rename" else one["path"]
            writers.setdefault(path, {}).setdefault(rank, one)
    for path, ranks in writers.items():
        if len(ranks) > 1:
            first = ranks[min(ranks)]
            return Finding(
                "writers",
                "wrong",
                f"{len(ranks)} ranks write {_name(path)}",
                first["frames"],
                "K2",
                "Write on rank 0 only, or to a name with the rank in it.",
            )
    return Finding("writers", "ok", f"{len(writers)} file{'s' * (len(writers) != 1)} written, each by one rank")


def _saves(run: AuditedRun) -> list[tuple[int, dict]]:
    return [(rank, one) for rank, found in run.of("save").items() for one in found]


def atomic(run: AuditedRun) -> Finding:
    saves = _saves(run)
    if not saves:
        return Finding("atomic", "unknown", "nothing was saved with torch.save")
    direct: dict[tuple[str, int], list[dict]] = {}
    for rank, one in saves:
        later = [each for each in run.audits[rank].of("rename") if each["at"] > one["at"]]
        around = {one["path"], *map(str, Path(one["path"]).parents)}
        if not any(each["source"] in around for each in later):
            direct.setdefault((one["path"], rank), []).append(one)
    if not direct:
        return Finding("atomic", "ok", f"{len(saves)} saved under another name, then renamed")
    (path, _), found = max(direct.items(), key=lambda one: len(one[1]) > 1)  # the first overwritten one, else the first
    cure = "Save to a temporary name in the same folder, fsync, then os.replace to the final name."
    status, text = "note", "is written under its final name: a kill meanwhile leaves a torn file, which looks whole"
    if len(found) > 1:
        text = f"is overwritten in place, {len(found)} times: a kill while it is written leaves no whole checkpoint"
        readers = [run, *filter(None, [run.second])]
        if any(
            event["path"] == path for reader in readers for events in reader.of("load").values() for event in events
        ):
            status = "wrong"
        else:
            text += ", if something resumes from it"
    return Finding("atomic", status, f"{_name(path)} {text}", found[0]["frames"], "K1", cure)


def loadable(run: AuditedRun) -> Finding:
    saves = [one for _, one in _saves(run) if one["loads"] is not None]
    if not saves:
        return Finding("loadable", "unknown", "nothing was saved with torch.save to a path")
    for one in saves:
        if one["loads"] is not True:
            return Finding(
                "loadable",
                "note",
                f"torch.load refuses {_name(one['path'])} because of {one['loads']}",
                one["frames"],
                "K4",
                "Save tensors, numbers, text and containers of them: state_dict(), not the model.",
            )
    return Finding("loadable", "ok", f"{len(saves)} loaded again")
