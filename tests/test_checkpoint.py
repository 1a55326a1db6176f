"""A checkpoint is whole or absent, a damaged one is refused with the reason, and loading runs no code."""

import os
import random
import zlib

import numpy as np
import pytest
import torch
from disturbance import flip_a_bit, full_disk

from ddp_course.base.errors import InputError
from ddp_course.checkpoint import checkpoint

pytestmark = pytest.mark.smoke


def state(step):
    return {"step": step, "model": {"weight": torch.full((256, 256), float(step))}, "names": ["a", "b"]}


@pytest.fixture
def run_dir(tmp_path):
    checkpoint.save(tmp_path, 1, state(1))
    checkpoint.save(tmp_path, 2, state(2))
    return tmp_path


def test_a_saved_state_is_loaded(run_dir):
    newest = checkpoint.newest_valid(run_dir)
    assert newest.name == "step_000002" == (run_dir / "latest").read_text().strip()
    loaded = checkpoint.load(newest)
    assert loaded["step"] == 2 and torch.equal(loaded["model"]["weight"], state(2)["model"]["weight"])


@pytest.mark.parametrize("position", [0.0, 0.01, 0.5, 0.999, "a flipped bit", "half a checksum"])
def test_a_damaged_checkpoint_is_passed_over(run_dir, capsys, position):
    newest = checkpoint.newest_valid(run_dir)
    file = newest / "state.pt"
    if position == "a flipped bit":
        flip_a_bit(file)
    elif position == "half a checksum":
        os.truncate(newest / "state.pt.crc32", 12)
    else:
        os.truncate(file, int(file.stat().st_size * position))
    assert checkpoint.newest_valid(run_dir).name == "step_000001"
    [line] = capsys.readouterr().out.splitlines()
    assert "step_000002" in line and "truncated or damaged" in line
    with pytest.raises(InputError, match="truncated or damaged"):
        checkpoint.load(newest)


def test_what_a_killed_save_leaves_does_not_stop_the_next_one(run_dir):
    """Leftover folders, also with our own pid, as in a container whose pids repeat; or an old `latest`."""
    for pid in (os.getpid(), 123):
        (run_dir / "checkpoints" / f".step_000003.{pid}.tmp").mkdir()
    assert checkpoint.load(checkpoint.save(run_dir, 3, state(3)))["step"] == 3
    assert sorted(os.listdir(run_dir / "checkpoints")) == ["step_000001", "step_000002", "step_000003"]
    (run_dir / "latest").write_text("step_000002\n")
    checkpoint.save(run_dir, 3, state(3))
    assert (run_dir / "latest").read_text() == "step_000003\n"


def test_a_missing_file_is_named(run_dir):
    os.remove(run_dir / "checkpoints/step_000002/state.pt.crc32")
    assert checkpoint.problem(run_dir / "checkpoints/step_000002").startswith("state.pt.crc32 is missing")


def test_only_damaged_checkpoints_is_an_error_and_none_is_not(run_dir, tmp_path_factory):
    for name in ("step_000001", "step_000002"):
        os.truncate(run_dir / "checkpoints" / name / "state.pt", 10)
    with pytest.raises(InputError, match="none of the 2 checkpoints"):
        checkpoint.newest_valid(run_dir)
    assert checkpoint.newest_valid(tmp_path_factory.mktemp("empty")) is None


def test_saving_the_same_step_again_keeps_a_valid_one_and_replaces_a_damaged_one(run_dir):
    path = run_dir / "checkpoints/step_000002/state.pt"
    written = path.stat().st_mtime_ns
    checkpoint.save(run_dir, 2, state(3))
    assert path.stat().st_mtime_ns == written
    os.truncate(path, 10)
    checkpoint.save(run_dir, 2, state(2))
    assert checkpoint.newest_valid(run_dir).name == "step_000002"


def test_keep_removes_the_oldest(run_dir):
    checkpoint.save(run_dir, 10, state(10), keep=2)
    assert sorted(os.listdir(run_dir / "checkpoints")) == ["step_000002", "step_000010"]


def test_a_million_steps_come_after_all_those_before(run_dir):
    checkpoint.save(run_dir, 999_999, state(999_999))
    checkpoint.save(run_dir, 1_000_000, state(1_000_000), keep=1)
    assert checkpoint.newest_valid(run_dir).name == "step_1000000"
    assert os.listdir(run_dir / "checkpoints") == ["step_1000000"]


def test_other_folders_among_the_checkpoints_are_kept(run_dir):
    (run_dir / "checkpoints" / "step_by_step_notes").mkdir()
    checkpoint.save(run_dir, 3, state(3), keep=1)
    assert checkpoint.newest_valid(run_dir).name == "step_000003"
    assert sorted(os.listdir(run_dir / "checkpoints")) == ["step_000003", "step_by_step_notes"]


def test_resuming_from_an_earlier_step_sets_the_later_checkpoints_aside(run_dir):
    """Otherwise they would be the newest of a run that did not write them, and `keep` would count them."""
    os.truncate(run_dir / "checkpoints/step_000002/state.pt", 10)
    for _ in range(2):
        checkpoint.save(run_dir, 3, state(3))
        checkpoint.set_aside_later_than(run_dir, 1)
        assert checkpoint.newest_valid(run_dir).name == "step_000001"
    checkpoint.save(run_dir, 2, state(2), keep=1)
    assert checkpoint.newest_valid(run_dir).name == "step_000002"
    aside = {"set_aside_step_000002", "set_aside_step_000003", "set_aside_step_000003_1"}
    assert set(os.listdir(run_dir / "checkpoints")) == {"step_000002"} | aside


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "checkpoints").write_text("a file where a folder should be")
    with pytest.raises(InputError, match="cannot write checkpoint .*step_000001: Not a directory"):
        checkpoint.save(tmp_path, 1, state(1))


def test_a_full_disk_keeps_the_earlier_checkpoints(run_dir):
    """The write stops in the middle of the tensor."""
    with full_disk(50_000), pytest.raises(InputError, match="cannot write checkpoint .*File too large"):
        checkpoint.save(run_dir, 3, state(3))
    assert sorted(os.listdir(run_dir / "checkpoints")) == ["step_000001", "step_000002"]
    assert checkpoint.newest_valid(run_dir).name == "step_000002"


def test_loading_runs_no_code(tmp_path):
    class Malicious:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "code_was_run"),))

    checkpoint.save(tmp_path, 1, {"step": 1, "model": Malicious()})
    with pytest.raises(InputError, match="holds more than tensors"):
        checkpoint.load(tmp_path / "checkpoints/step_000001")
    assert not (tmp_path / "code_was_run").exists()


def test_a_state_of_another_program_is_refused(tmp_path):
    for step, content in enumerate(([1.0], {1: 2.0})):
        path = checkpoint.save(tmp_path, step, content)
        with pytest.raises(InputError, match=f"expected a dict of named parts, found a {type(content).__name__}"):
            checkpoint.load(path)
    (path / "state.pt").write_bytes(b"text")
    (path / "state.pt.crc32").write_text(f"{zlib.crc32(b'text'):08x}  state.pt\n")
    with pytest.raises(InputError, match="state.pt is no file of torch.save"):
        checkpoint.load(path)


def test_random_numbers_continue_after_a_restore():
    saved = checkpoint.random_state(torch.device("cpu"))
    expected = (torch.rand(1).item(), random.random(), np.random.normal())
    checkpoint.restore_random_state(saved, torch.device("cpu"))
    assert (torch.rand(1).item(), random.random(), np.random.normal()) == expected
