"""A run's files are put back to its first checkpoint, and nothing else is touched."""

import pytest
from ddp_doctor.audit.kept import Kept
from ddp_doctor.audited import Audit, AuditedRun
from ddp_doctor.set_back import bring_back, moment, put_aside, set_back, take_copies

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
    return Kept(Log(tmp_path / "audits")), tmp_path / "out"


def write(kept, path, text, asked=True):
    kept.writes(str(path), asked)
    path.write_text(text)


def end(kept, out, others=()):
    kept.end()
    audits = {0: Audit(kept.log.events)} | dict(enumerate(others, 1))
    take_copies(out.parent / "audits", out.parent / "copies")
    return AuditedRun(audits)


def test_what_the_recorder_writes_in_a_call_of_the_script_is_not_the_scripts(run):
    kept, out = run
    (out.parent / "audits" / "1.events").write_text("written before")
    write(kept, out.parent / "audits" / "1.events", "group destroyed")
    write(kept, out / "model.pt", "first")
    [written] = end(kept, out).audits[0].of("written")
    assert written["files"] == [str(out / "model.pt")] and written["older"] == []


def test_files_and_folders_are_as_they_were_before_the_next_update(run):
    kept, out = run
    (out / "of_somebody_else").write_text("mine")
    kept.before_update()
    write(kept, out / "log", "one")
    write(kept, out / "model.pt", "first")
    kept.saves(str(out / "model.pt"))
    write(kept, out / "about.json", "first", asked=False)  # a library wrote it, beside the checkpoint
    (out / "latest").symlink_to("model.pt")
    kept.writes(str(out / "latest"))
    kept.before_update()
    write(kept, out / "log", "one two")
    write(kept, out / "model.pt", "second")
    write(kept, out / "about.json", "second", asked=False)
    kept.folders.add(str(out / "new"))
    (out / "new").mkdir()
    write(kept, out / "new" / "model.pt", "third")
    (out / "new" / "unseen").write_text("written by what no audit sees")
    kept.saves(str(out / "new" / "model.pt"))
    kept.renames(str(out / "new"), str(out / "step_3"))
    (out / "new").rename(out / "step_3")
    (out / "latest").unlink()
    write(kept, out / "best.pt", "best")
    kept.before_update()
    audited_run = end(kept, out)
    assert moment(audited_run) == 1
    assert set_back(audited_run, out.parent / "copies") is None
    assert sorted(path.name for path in out.iterdir()) == [
        "about.json",
        "latest",
        "log",
        "model.pt",
        "of_somebody_else",
    ]
    assert [(out / name).read_text() for name in ("log", "about.json", "latest")] == ["one", "first", "first"]
    assert (out / "latest").is_symlink()


def test_a_file_that_was_there_before_is_never_removed(run):
    kept, out = run
    (out / "best.pt").write_text("of another run")
    kept.before_update()
    write(kept, out / "model.pt", "first")
    kept.saves(str(out / "model.pt"))
    kept.before_update()
    write(kept, out / "best.pt", "of this run")
    write(kept, out / "model.pt", "second")
    audited_run = end(kept, out)
    assert "best.pt, which was there before" in set_back(audited_run, out.parent / "copies")
    assert [(out / name).read_text() for name in ("best.pt", "model.pt")] == ["of this run", "second"]


def test_nothing_happens_without_a_checkpoint_between_two_updates(run):
    kept, out = run
    write(kept, out / "begin.pt", "begin")
    kept.saves(str(out / "begin.pt"))
    kept.before_update()
    kept.before_update()
    write(kept, out / "end.pt", "end")
    kept.saves(str(out / "end.pt"))
    audited_run = end(kept, out)
    assert moment(audited_run) is None and "between two updates" in set_back(audited_run, out.parent / "copies")
    assert (out / "end.pt").exists()
    cut = AuditedRun(audited_run.audits, whole=False)
    assert set_back(cut, out.parent / "copies") == "it was cut off"


def test_what_a_run_has_written_is_put_aside_and_brought_back(run):
    kept, out = run
    kept.before_update()
    write(kept, out / "log", "one")
    kept.folders.add(str(out / "new"))
    (out / "new").mkdir()
    write(kept, out / "new" / "model.pt", "first")
    kept.saves(str(out / "new" / "model.pt"))
    (out / "new" / "unseen").write_text("written by what no audit sees")
    audited_run = end(kept, out)
    moved = put_aside(audited_run, out.parent / "aside")
    assert not list(out.iterdir())
    bring_back(moved)
    assert sorted(path.name for path in out.rglob("*")) == ["log", "model.pt", "new", "unseen"]


def test_nothing_is_put_aside_where_a_file_was_there_before(run):
    kept, out = run
    (out / "log").write_text("of another run")
    write(kept, out / "log", "of this run")
    assert "log, which was there before" in put_aside(end(kept, out), out.parent / "aside")
    assert (out / "log").read_text() == "of this run"
