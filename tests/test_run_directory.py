"""The folder of a run belongs to one job at a time, and an error of writing is one sentence."""

import gc
import json
import os
import signal
import time

import psutil
import pytest
import torch
from disturbance import contents

from ddp_course.base.atomic_file import replacing
from ddp_course.base.errors import InputError
from ddp_course.checkpoint import checkpoint, run_files
from ddp_course.checkpoint.run_directory import METRICS, open_run
from ddp_course.distributed import process_group, torchrun
from ddp_course.distributed.process_group import World
from ddp_course.training.settings import RunSettings
from ddp_course.training.stop_request import StopRequest


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield process_group.start()
    process_group.stop()


@pytest.fixture
def handlers():
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def test_two_jobs_that_start_in_the_same_second_have_a_folder_each(world, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda form: form)
    folders = [open_run(world, "", "no", "minigpt")[0].path for _ in range(3)]
    assert len(set(folders)) == 3 and all(folder.is_dir() for folder in folders)


@pytest.mark.parametrize("resume", ["no", "auto"])
def test_a_second_job_is_kept_out_until_the_first_has_ended(world, resume):
    first, _ = open_run(world, "run", resume, "minigpt")
    with pytest.raises(InputError, match="another job is writing into run; give another folder, or end that job first"):
        open_run(world, "run", resume, "minigpt")
    del first
    gc.collect()
    open_run(world, "run", resume, "minigpt")


def test_a_resumed_run_names_its_latest_checkpoint(world, tmp_path):
    """A kill can come between the checkpoint and the line that names it."""
    for step in (1, 2):
        checkpoint.save(tmp_path / "run", step, {"step": step})
    (tmp_path / "run" / "latest").write_text("step_000001\n")
    open_run(world, "run", "auto", "minigpt")
    assert (tmp_path / "run" / "latest").read_text() == "step_000002\n"


def test_a_launcher_that_was_gone_before_training_began_is_noticed(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    here = World(0, 0, 1, torch.device("cpu"))
    assert not StopRequest(here, RunSettings()).asked()
    orphan = World(0, 0, 1, torch.device("cpu"), launcher=os.getppid() + 1)
    request = StopRequest(orphan, RunSettings())
    assert request.asked() and request.reason == "the launcher is gone"


@pytest.mark.parametrize(
    ("restarts", "most", "code", "is_stopped"),
    [
        (0, 2, 75, True),  # it would start the ranks again, and again: a stop would be a loop
        (2, 2, 75, False),  # its restarts are used up
        (0, 0, 75, False),
        (0, 2, 0, False),  # it takes 0 for the end
    ],
)
def test_a_torchrun_that_would_restart_is_stopped(
    world, handlers, monkeypatch, tmp_path, restarts, most, code, is_stopped
):
    sent = []
    monkeypatch.setattr(torchrun, "stop", sent.append)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restarts))
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", str(most))
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error"))
    request = StopRequest(world, RunSettings(max_seconds=1e-9, exit_code_when_stopped=code))
    assert request.asked() and request.leave(7, tmp_path) == code
    assert sent == [world.launcher] * is_stopped
    assert "stopped after step 7: the time budget is spent" in (tmp_path / "error").read_text()


def test_only_a_torchrun_is_stopped(monkeypatch):
    """It makes its ranks leaders of sessions. A shell in between would end, and torchrun would restart."""
    sent = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(pid))
    for leader, launcher in ((os.getpid() + 1, os.getppid()), (os.getpid(), os.getppid() + 1)):
        monkeypatch.setattr(os, "getsid", lambda _, leader=leader: leader)
        torchrun.stop(launcher)
    assert not sent


OUR_CONFIG = '{"run_dir": "run", "resume": "no", "world_size": 1, "script": "minigpt_ddp"}'


@pytest.mark.parametrize("resume", ["no", "auto"])
@pytest.mark.parametrize("name", ["config.json", "latest", "metrics.jsonl", "notes.txt", "checkpoints/notes"])
def test_a_foreign_folder_is_refused_and_left_unchanged(world, tmp_path, name, resume):
    (tmp_path / "run" / name).parent.mkdir(parents=True)
    (tmp_path / "run" / name).write_text('{"step": 7, "world_size": 1}\n')
    initial = contents(tmp_path)
    with pytest.raises(InputError, match="run is neither empty nor a run of this course"):
        open_run(world, "run", resume, "minigpt")
    assert contents(tmp_path) == initial


@pytest.mark.parametrize(
    "written", ["nowhere/..", "link", "link/", "run/", "run/nowhere/..", "../{name}/run", "nowhere/../link"]
)
def test_a_foreign_folder_is_refused_however_its_path_is_written(world, tmp_path, written):
    """`nowhere/..` is no path until `nowhere` is made, and then it is the folder that holds it."""
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    for folder in (tmp_path, tmp_path / "run"):
        (folder / "config.json").write_text('{"size": 1}\n')
    initial = contents(tmp_path)
    with pytest.raises(InputError, match="is neither empty nor a run of this course"):
        open_run(world, written.format(name=tmp_path.name), "no", "minigpt")
    assert contents(tmp_path) == initial


def test_files_that_come_while_a_run_prepares_are_not_overwritten(world, tmp_path):
    """The folder is empty when it is opened; tokens are made before the first file is written into it."""
    run_directory, _ = open_run(world, "run", "no", "minigpt")
    (tmp_path / "run" / "config.json").write_text('{"size": 1}\n')
    with pytest.raises(InputError, match="run is neither empty nor a run of this course"):
        run_directory.begin(0, json.loads(OUR_CONFIG))
    assert (tmp_path / "run" / "config.json").read_text() == '{"size": 1}\n'


def test_a_checkpoint_outside_of_a_run_does_not_make_its_surroundings_one(world, tmp_path):
    """`--resume PATH` writes into the folder that holds checkpoints/PATH; a copy elsewhere has no such folder."""
    checkpoint.save(tmp_path / "run", 1, {"step": 1})
    (tmp_path / "run" / "checkpoints" / "step_000001").rename(tmp_path / "step_000001")
    with pytest.raises(InputError, match="give --run-dir"):
        open_run(world, "", str(tmp_path / "step_000001"), "minigpt")
    assert open_run(world, "new", str(tmp_path / "step_000001"), "minigpt")[1] == tmp_path / "step_000001"


@pytest.mark.parametrize("resume", ["no", "auto"])
def test_a_run_of_another_script_is_named(world, tmp_path, resume):
    report(open_run(world, "run", "no", "reward")[0])
    gc.collect()
    initial = contents(tmp_path)
    with pytest.raises(InputError, match="run holds a run of reward_ddp, not one of minigpt_ddp"):
        open_run(world, "run", resume, "minigpt")
    assert contents(tmp_path) == initial


def test_settings_that_cannot_be_read_are_named_and_kept(world, tmp_path):
    checkpoint.save(tmp_path / "run", 1, {"step": 1})
    (tmp_path / "run" / "config.json").write_text(OUR_CONFIG[:30])
    initial = contents(tmp_path)
    with pytest.raises(InputError, match=r"config\.json.*move it away to go on without it"):
        open_run(world, "run", "auto", "minigpt")
    assert contents(tmp_path) == initial


def report(run_directory, first=1, last=1):
    """Begin a run at `first`, with an entry for each step to `last`."""
    run_directory.begin(first - 1, json.loads(OUR_CONFIG))
    for step in range(first, last + 1):
        run_directory.log({"step": step, "loss": 1 / step})


@pytest.fixture
def ended_run(world, tmp_path):
    """The folder of a run with a checkpoint and three entries, whose job has ended."""
    report(open_run(world, "run", "no", "minigpt")[0], last=3)
    checkpoint.save(tmp_path / "run", 3, {"step": 3})
    gc.collect()
    return tmp_path / "run"


def test_going_back_drops_the_later_metrics_and_sets_the_later_checkpoint_aside(world, ended_run):
    lines = (ended_run / METRICS).read_bytes().splitlines(keepends=True)
    open_run(world, "run", "auto", "minigpt")[0].begin(2, json.loads(OUR_CONFIG))
    assert (ended_run / METRICS).read_bytes() == lines[0] + lines[1]
    assert os.listdir(ended_run / "checkpoints") == ["set_aside_step_000003"]


@pytest.mark.parametrize(
    "odd",
    [b"7\n", b'{"loss": 1.0}\n', b'{"step": "2"}\n', b"\xff\xfe\n", b"[" * 100_000 + b"\n", b'{"step": 1e400}\n'],
    ids=["a number", "no step", "a step of text", "not UTF-8", "nested", "infinite"],
)
def test_odd_lines_among_the_metrics_are_set_aside(world, ended_run, capsys, odd):
    lines = (ended_run / METRICS).read_bytes().splitlines(keepends=True)
    (ended_run / METRICS).write_bytes(lines[0] + odd + lines[1] + lines[2] + b'{"step": 4, "lo')
    open_run(world, "run", "auto", "minigpt")[0].begin(2, json.loads(OUR_CONFIG))
    assert (ended_run / METRICS).read_bytes() == lines[0] + lines[1]
    assert (ended_run / "set_aside_metrics.jsonl").read_bytes() == odd + b'{"step": 4, "lo\n'
    assert "2 line(s) of run/metrics.jsonl are no records of a run, the first is line 2" in capsys.readouterr().out


@pytest.mark.parametrize("odd", ["a folder", "binary", "text"])
def test_a_latest_that_names_no_checkpoint_is_set_aside(world, ended_run, capsys, odd):
    latest = ended_run / "latest"
    latest.unlink()
    if odd == "a folder":
        latest.mkdir()
        (latest / "notes").write_text("text")
    else:
        latest.write_bytes(b"\xff\x00\n" if odd == "binary" else b"yesterday\n")
    open_run(world, "run", "auto", "minigpt")
    assert latest.read_text() == "step_000003\n"
    assert (ended_run / "set_aside_latest").exists() and "set_aside_latest" in capsys.readouterr().out


def test_metrics_that_are_a_folder_are_an_error_of_one_line(world, ended_run):
    (ended_run / METRICS).unlink()
    (ended_run / METRICS).mkdir()
    run_directory, _ = open_run(world, "run", "auto", "minigpt")
    with pytest.raises(InputError, match=r"^cannot write run/metrics\.jsonl: Is a directory$"):
        run_directory.log({"step": 4})
    with pytest.raises(InputError, match=r"run/metrics.jsonl.*Is a directory"):
        run_directory.begin(2, json.loads(OUR_CONFIG))


@pytest.mark.parametrize("path", ["x" * 300, "file/run", "a\0b"])
@pytest.mark.parametrize("resume", ["no", "auto", "as a checkpoint"])
def test_a_path_that_cannot_exist_is_an_error_of_one_line(world, tmp_path, path, resume):
    (tmp_path / "file").write_text("")
    paths, message = (path, resume), "^cannot write into the run directory "
    if resume == "as a checkpoint":
        paths, message = ("", path), "^cannot resume from .*: there is no such checkpoint folder$"
    with pytest.raises(InputError, match=message) as error:
        open_run(world, *paths, "minigpt")
    assert "\n" not in str(error.value)


def as_of_torchrun(monkeypatch, run_id="job", attempt=0):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", run_id)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))


@pytest.mark.parametrize("requested", ["run", ""])
@pytest.mark.parametrize("difference", ["run id", "launcher"])
def test_a_restarted_attempt_resumes_by_itself_and_another_job_does_not(world, monkeypatch, requested, difference):
    as_of_torchrun(monkeypatch)
    first, resume_from = open_run(world, requested, "no", "minigpt")
    assert resume_from is None
    report(first)
    path = first.path
    checkpoint.save(path, 1, {"step": 1})
    del first
    gc.collect()
    created = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: created(self) + 60)  # the clock has been set
    as_of_torchrun(monkeypatch, attempt=1)
    second, resume_from = open_run(world, requested, "no", "minigpt")
    assert (second.path, resume_from) == (path, path / "checkpoints" / "step_000001")
    del second
    gc.collect()
    if difference == "run id":
        as_of_torchrun(monkeypatch, run_id="of another", attempt=1)
    else:  # run ids repeat: without --rdzv-id each is "none"
        monkeypatch.setattr(os, "getppid", os.getpid)
    if requested:
        with pytest.raises(InputError, match="already holds a run"):
            open_run(world, requested, "no", "minigpt")
    else:
        assert open_run(world, requested, "no", "minigpt")[0].path != path


def test_a_restart_after_a_resume_from_elsewhere_resumes_from_its_own_checkpoint(world, monkeypatch, tmp_path):
    as_of_torchrun(monkeypatch)
    elsewhere = checkpoint.save(tmp_path / "elsewhere", 5, {"step": 5})
    for _ in range(2):
        first, resume_from = open_run(world, "run", str(elsewhere), "minigpt")
        assert resume_from == elsewhere
        report(first, first=6, last=6)
        del first
        gc.collect()
    checkpoint.save(tmp_path / "run", 7, {"step": 7})
    assert open_run(world, "run", str(elsewhere), "minigpt")[1].name == "step_000007"


def test_files_that_a_kill_left_do_not_make_a_folder_foreign(tmp_path):
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "config.json"):
        (half_written,) = (path.name for path in tmp_path.iterdir())
        raise KeyboardInterrupt
    for name in (half_written, ".write_test.7"):
        (tmp_path / name).touch()
    assert run_files.contents_of(tmp_path) == run_files.RunContents()
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match=r"holds thesis\.tex"):
        run_files.contents_of(tmp_path)
