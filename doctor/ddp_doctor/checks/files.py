"""Checks files: one rank writes each, a kill during a save leaves a valid checkpoint, and torch.load reads it."""

from pathlib import Path

from ddp_doctor import words
from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks.finding import Finding, note, ok, require, wrong


def one_writer(run: AuditedRun) -> Finding:
    writers: dict[str, dict[int, dict]] = {}
    for rank, events in run.of("open", "save", "rename").items():
        for event in events:
            writers.setdefault(event["path"], {}).setdefault(rank, event)
    for path, ranks in writers.items():
        if len(ranks) > 1:
            text = f"{len(ranks)} ranks write {words.short_path(path)}"
            cure = "Write on rank 0 only, or to a name with the rank in it."
            return wrong(text, ranks[min(ranks)]["frames"], "K2", cure)
    return ok(f"{len(writers)} file{'s' * (len(writers) != 1)} written, each by one rank")


def _saves(run: AuditedRun) -> list[tuple[int, dict]]:
    return [(rank, event) for rank, events in run.of("save").items() for event in events]


def atomic(run: AuditedRun) -> Finding:
    saves = _saves(run)
    require(saves, "nothing was saved with torch.save")
    direct: dict[tuple[str, int], list[dict]] = {}
    for rank, save in saves:
        renames = [event for event in run.audits[rank].of("rename") if event["at"] > save["at"]]
        file_and_folders = {save["path"], *map(str, Path(save["path"]).parents)}
        if not any(event["source"] in file_and_folders for event in renames):
            direct.setdefault((save["path"], rank), []).append(save)
    if not direct:
        return ok(f"{len(saves)} saved under another name, then renamed")
    # The first file that was saved twice, else the first file
    (path, _), path_saves = max(direct.items(), key=lambda entry: len(entry[1]) > 1)
    cure = "Save to a temporary name in the same folder, fsync, then os.replace to the final name."
    status, text = "note", "is written under its final name: a kill meanwhile leaves a torn file, which looks whole"
    if len(path_saves) > 1:
        times = len(path_saves)
        text = f"is overwritten in place, {times} times: a kill while it is written leaves no whole checkpoint"
        runs = [run, run.second] if run.second else [run]
        loads = [event for any_run in runs for events in any_run.of("load").values() for event in events]
        if path in {event["path"] for event in loads}:
            status = "wrong"
        else:
            text += ", if something resumes from it"
    return Finding(status, f"{words.short_path(path)} {text}", path_saves[0]["frames"], "K1", cure)


def loadable(run: AuditedRun) -> Finding:
    require(_saves(run), "nothing was saved with torch.save to a path")
    saves = [save for _, save in _saves(run) if save["load_error"] is not None]
    require(saves, "no file of torch.save could be read again")
    for save in saves:
        if save["load_error"]:
            text = f"torch.load refuses {words.short_path(save['path'])} because of {save['load_error']}"
            cure = "Save tensors, numbers, text and containers of them: state_dict(), not the model."
            return note(text, save["frames"], "K4", cure)
    return ok(f"{len(saves)} loaded again")
