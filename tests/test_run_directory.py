"""The folder of a run belongs to one job at a time, and what cannot be written into it is told in one sentence."""

import gc
import os
import time

import pytest
import torch

from ddp_course.errors import InputError
from ddp_course.parallel import checkpoint, process_group
from ddp_course.parallel.distributed_state import _drop_tensors_without_checkpoint
from ddp_course.parallel.process_group import World
from ddp_course.parallel.run_directory import METRICS, open_run
from ddp_course.parallel.stop_request import StopRequest


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield process_group.start()
    process_group.stop()


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


def test_what_cannot_be_written_is_told_in_one_line(world):
    run_directory, _ = open_run(world, "run", "no", "minigpt")
    (run_directory.path / METRICS).mkdir()
    with pytest.raises(InputError, match=r"^cannot write run/metrics\.jsonl: Is a directory$"):
        run_directory.log({"step": 1})


def test_a_resumed_run_names_its_latest_checkpoint(world, tmp_path):
    """A kill can come between the checkpoint and the line that names it."""
    for step in (1, 2):
        checkpoint.save(tmp_path / "run", step, {"step": step})
    (tmp_path / "run" / "latest").write_text("step_000001\n")
    open_run(world, "run", "auto", "minigpt")
    assert (tmp_path / "run" / "latest").read_text() == "step_000002\n"


def test_tensors_go_and_are_set_aside_with_their_checkpoint(world, tmp_path):
    """Steps 3 and 4 are there; the run goes back to 3, and keeps one checkpoint from there on."""
    for step in (3, 4):
        checkpoint.save(tmp_path, step, {"step": step})
        (tmp_path / "tensors" / f"step_00000{step}").mkdir(parents=True)
    checkpoint.set_aside_later_than(tmp_path, 3)
    assert {path.name for path in (tmp_path / "tensors").iterdir()} == {"step_000003", "set_aside_step_000004"}
    (tmp_path / "tensors" / "step_000005").mkdir()
    checkpoint.save(tmp_path, 5, {"step": 5}, keep=1)
    _drop_tensors_without_checkpoint(tmp_path)
    assert {path.name for path in (tmp_path / "tensors").iterdir()} == {"step_000005", "set_aside_step_000004"}


def test_a_launcher_that_was_gone_before_training_began_is_noticed(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    here = World(0, 0, 1, torch.device("cpu"))
    assert not StopRequest(here).asked()
    orphan = World(0, 0, 1, torch.device("cpu"), launcher=os.getppid() + 1)
    request = StopRequest(orphan)
    assert request.asked() and request.reason == "the launcher is gone"
