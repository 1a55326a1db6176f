"""Checkpoints of two ranks that one and four load; whole or absent; a save in the background keeps the old values."""

import os

import distributed_checkpoint_ranks
import pytest
import torch
import warm
from disturbance import flip_a_bit
from torch import nn

from ddp_course.base.errors import InputError
from ddp_course.checkpoint import checkpoint, distributed_checkpoint
from ddp_course.checkpoint.distributed_state import DistributedState
from ddp_course.distributed import process_group


def model_and_optimizer(seed=2):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, 12), nn.Tanh(), nn.Linear(12, 5))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


@pytest.fixture(scope="module")
def saved_by_two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed")
    warm.ranks(distributed_checkpoint_ranks.__file__, folder, nproc=4)
    return folder


@pytest.mark.parametrize("kind", ["replicated", "sharded", "background"])
def test_saved_by_two_ranks_loaded_by_four_and_by_one(saved_by_two, kind):
    """By four in distributed_checkpoint_ranks.py; by one here, without a process group."""
    model, optimizer = model_and_optimizer()
    assert distributed_checkpoint.load(saved_by_two / kind / "step_000003", model, optimizer) == 3
    weights, moments = torch.load(saved_by_two / f"{kind.replace('background', 'replicated')}.pt")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert all(map(torch.equal, (optimizer.state[p]["exp_avg_sq"] for p in model.parameters()), moments))


@pytest.fixture
def single_rank():
    yield process_group.start()
    process_group.stop()


def test_what_a_killed_save_leaves_is_not_loaded_and_stops_no_save(single_rank, tmp_path):
    model, optimizer = model_and_optimizer()
    distributed_checkpoint.save(tmp_path, 9, model, optimizer)
    (tmp_path / ".step_000010.tmp").mkdir()
    (tmp_path / ".step_000010.tmp" / "__0_0.distcp").write_bytes(b"half")
    (tmp_path / "step_000011").mkdir()  # a copy that was cut short: no index
    (tmp_path / "step_best").mkdir()
    assert distributed_checkpoint.newest(tmp_path).name == "step_000009"
    distributed_checkpoint.save(tmp_path, 10, model, optimizer)
    assert distributed_checkpoint.newest(tmp_path).name == "step_000010"
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(InputError, match="has no file .metadata"):
        distributed_checkpoint.load(tmp_path, *model_and_optimizer())


@pytest.mark.parametrize("damage", ["a flipped bit", "a missing file", "no checksums", "checksums cut short"])
def test_a_damaged_newest_checkpoint_is_passed_over(single_rank, tmp_path, capsys, damage):
    model, optimizer = model_and_optimizer()
    for step in (1, 2):
        distributed_checkpoint.save(tmp_path, step, model, optimizer)
    newest = tmp_path / "step_000002"
    checksums = newest / distributed_checkpoint.CHECKSUMS
    if damage == "a flipped bit":
        flip_a_bit(newest / "__0_0.distcp")
    elif damage == "a missing file":
        (newest / "__0_0.distcp").unlink()
    elif damage == "no checksums":
        checksums.unlink()
    else:
        checksums.write_text("".join(checksums.read_text().splitlines(keepends=True)[:-1]))
    capsys.readouterr()
    assert distributed_checkpoint.newest(tmp_path).name == "step_000001"
    [line] = capsys.readouterr().out.splitlines()
    assert "passing over" in line and "step_000002" in line
    with pytest.raises(InputError, match="is no distributed checkpoint that can be loaded"):
        distributed_checkpoint.load(newest, model, optimizer)


def test_a_checkpoint_of_another_model_is_refused_in_one_line(single_rank, tmp_path):
    path = distributed_checkpoint.save(tmp_path, 1, *model_and_optimizer())
    other = nn.Linear(3, 2)
    with pytest.raises(InputError, match="cannot load .*step_000001") as error:
        distributed_checkpoint.load(path, other, torch.optim.AdamW(other.parameters()))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("folder", "name"), [("tensors", "*.distcp"), ("checkpoints", "state.pt")])
def test_a_run_with_damaged_tensors_falls_back_to_the_checkpoint_before(single_rank, tmp_path, capsys, folder, name):
    """The plain checkpoint is whole; the tensors that belong to it are not."""
    model, optimizer = model_and_optimizer()
    state = DistributedState(model, optimizer, {"seed": 1})
    for step in (1, 2):
        state.save(single_rank, tmp_path, step, {}, keep=0)
    [damaged] = (tmp_path / folder / "step_000002").glob(name)
    flip_a_bit(damaged)
    newest = checkpoint.newest_valid(tmp_path)
    assert newest.name == "step_000001" and "step_000002" in capsys.readouterr().out
    assert state.restore(single_rank, newest) == 1
