"""A run's files are put back to its first checkpoint, and no others are touched."""

import os

import pytest
from ddp_doctor.audit.snapshot import Snapshot
from ddp_doctor.audited import Audit, AuditedRun
from ddp_doctor.set_back import bring_back, checkpoint_step, put_aside, set_back, take_copies

pytestmark = pytest.mark.smoke


class Log:
    def __init__(self, folder):
        self.path, self.events = str(folder / "1"), []

    def event(self, kind, **facts):
        self.events.append({"event": kind, "at": len(self.events), **facts})


@pytest.fixture
def run(tmp_path):
    (tmp_path / "audits").mkdir()
    (tmp_path / "copies").mkdir()
    (tmp_path / "out").mkdir()
    return Snapshot(Log(tmp_path / "audits")), tmp_path / "out"


def write(snapshot, path, text, by_script=True):
    snapshot.record_write(str(path), by_script)
    path.write_text(text)


def end(snapshot, out, others=()):
    snapshot.end()
    audits = {0: Audit(snapshot.log.events)} | dict(enumerate(others, 1))
    take_copies(out.parent / "audits", out.parent / "copies")
    return AuditedRun(audits)


def test_files_of_the_recorder_are_not_the_scripts(run):
    snapshot, out = run
    (out.parent / "audits" / "1.events").write_text("written before")
    write(snapshot, out.parent / "audits" / "1.events", "group destroyed")
    write(snapshot, out / "model.pt", "first")
    [written] = end(snapshot, out).audits[0].of("written")
    assert written["files"] == [str(out / "model.pt")] and written["older"] == []


def test_files_and_folders_are_as_they_were_before_the_next_step(run):
    snapshot, out = run
    (out / "of_somebody_else").write_text("mine")
    snapshot.before_step()
    write(snapshot, out / "log", "one")
    write(snapshot, out / "model.pt", "first")
    snapshot.record_save(str(out / "model.pt"))
    write(snapshot, out / "about.json", "first", by_script=False)  # a library wrote it, beside the checkpoint
    (out / "latest").symlink_to("model.pt")
    snapshot.record_write(str(out / "latest"))
    snapshot.before_step()
    write(snapshot, out / "log", "one two")
    write(snapshot, out / "model.pt", "second")
    write(snapshot, out / "about.json", "second", by_script=False)
    snapshot.folders.add(str(out / "new"))
    (out / "new").mkdir()
    write(snapshot, out / "new" / "model.pt", "third")
    (out / "new" / "unseen").write_text("written by what no audit sees")
    snapshot.record_save(str(out / "new" / "model.pt"))
    snapshot.record_rename(str(out / "new"), str(out / "step_3"))
    (out / "new").rename(out / "step_3")
    (out / "latest").unlink()
    write(snapshot, out / "best.pt", "best")
    snapshot.before_step()
    audited_run = end(snapshot, out)
    assert checkpoint_step(audited_run) == 1
    assert set_back(audited_run, out.parent / "copies") is None
    assert sorted(os.listdir(out)) == ["about.json", "latest", "log", "model.pt", "of_somebody_else"]
    assert [(out / name).read_text() for name in ("log", "about.json", "latest")] == ["one", "first", "first"]
    assert (out / "latest").is_symlink()


def test_a_file_that_was_there_before_is_never_removed(run):
    snapshot, out = run
    (out / "best.pt").write_text("of another run")
    snapshot.before_step()
    write(snapshot, out / "model.pt", "first")
    snapshot.record_save(str(out / "model.pt"))
    snapshot.before_step()
    write(snapshot, out / "best.pt", "of this run")
    write(snapshot, out / "model.pt", "second")
    audited_run = end(snapshot, out)
    assert "best.pt, which was there before" in set_back(audited_run, out.parent / "copies")
    assert [(out / name).read_text() for name in ("best.pt", "model.pt")] == ["of this run", "second"]


def test_a_file_that_another_rank_has_created_was_not_there_before(run):
    """Both ranks write it after the checkpoint; the second to open it finds it there."""
    snapshot, out = run
    snapshot.before_step()
    write(snapshot, out / "model.pt", "first")
    snapshot.record_save(str(out / "model.pt"))
    snapshot.before_step()
    write(snapshot, out / "best.pt", "of both")
    best = str(out / "best.pt")
    second = [
        {"event": "snapshot", "steps": 1, "files": {}, "folders": []},
        {"event": "written", "files": [best], "older": [best], "folders": []},
    ]
    assert set_back(end(snapshot, out, [Audit(second)]), out.parent / "copies") is None
    assert [path.name for path in out.iterdir()] == ["model.pt"]


def test_nothing_happens_without_a_checkpoint_between_two_steps(run):
    snapshot, out = run
    write(snapshot, out / "begin.pt", "begin")
    snapshot.record_save(str(out / "begin.pt"))
    snapshot.before_step()
    snapshot.before_step()
    write(snapshot, out / "end.pt", "end")
    snapshot.record_save(str(out / "end.pt"))
    audited_run = end(snapshot, out)
    assert checkpoint_step(audited_run) is None
    assert "between two steps" in set_back(audited_run, out.parent / "copies")
    assert (out / "end.pt").exists()
    cut = AuditedRun(audited_run.audits, complete=False)
    assert set_back(cut, out.parent / "copies") == "it was cut off"


def test_files_are_put_aside_and_brought_back(run):
    snapshot, out = run
    snapshot.before_step()
    write(snapshot, out / "log", "one")
    snapshot.folders.add(str(out / "new"))
    (out / "new").mkdir()
    write(snapshot, out / "new" / "model.pt", "first")
    snapshot.record_save(str(out / "new" / "model.pt"))
    (out / "new" / "unseen").write_text("written by what no audit sees")
    audited_run = end(snapshot, out)
    moved = put_aside(audited_run, out.parent / "aside")
    assert not list(out.iterdir())
    (out / "new").mkdir()
    (out / "new" / "model.pt").write_text("of a run on one process that was cut off")
    bring_back(moved)
    assert (out / "new" / "model.pt").read_text() == "first"
    assert sorted(path.name for path in out.rglob("*")) == ["log", "model.pt", "new", "unseen"]


def test_nothing_is_put_aside_where_a_file_was_there_before(run):
    snapshot, out = run
    (out / "log").write_text("of another run")
    write(snapshot, out / "log", "of this run")
    assert "log, which was there before" in put_aside(end(snapshot, out), out.parent / "aside")
    assert (out / "log").read_text() == "of this run"
