"""Five cases of `make chaos`: after a fault, and a damaged checkpoint in some, `--resume auto` ends bit-equal."""

import shutil

import pytest
import torch
from chaos import STEPS, Chaos, case, difference

CHOSEN = (4, 10, 28, 46, 238)  # of seed 0: five trainers, three faults

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def chaos(tmp_path_factory):
    return Chaos(tmp_path_factory.mktemp("chaos"))


@pytest.mark.parametrize("number", CHOSEN, ids=lambda number: str(case(0, number)))
def test_resuming_after_a_fault_ends_bit_equal(chaos, number):
    assert chaos.run(number, case(0, number)) == ""


def test_one_changed_bit_of_one_weight_is_a_difference(chaos, tmp_path):
    shutil.copytree(chaos.undisturbed("minigpt"), tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / f"step_{STEPS:06d}" / "state.pt"
    state = torch.load(path, weights_only=True)
    weight = next(iter(state["model"].values()))
    weight.view(torch.int32)[0] ^= 1
    torch.save(state, path)
    assert "checkpoint differs" in difference(tmp_path / "run", chaos.undisturbed("minigpt"))
