"""Layers that were not trained, and packing; notebook 27 asserts the losses, the gradients and the merging."""

import random
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from finetune_files import make_opt
from torch import nn

from ddp_course.base.errors import InputError
from ddp_course.post_training.adapters import add_adapters
from ddp_course.post_training.checkpoint_loading import every_rank_reads
from ddp_course.post_training.fine_tuning import IGNORED, collate, pack, step_loss
from ddp_course.post_training.lora import add_lora, trainable, untrained

pytestmark = pytest.mark.smoke
NAMES = ("q_proj", "v_proj")


def test_a_layer_that_did_not_move_is_named():
    for names, expected in ((NAMES, []), (("q_proj", "value"), ["v_proj"])):
        model = add_lora(nn.ModuleDict({name: nn.Linear(4, 4) for name in NAMES}), names)
        initial = {name: parameter.detach().clone() for name, parameter in trainable(model).items()}
        assert untrained(model, initial, NAMES) == list(NAMES)
        for parameter in trainable(model).values():
            parameter.data += 1
        assert untrained(model, initial, NAMES) == expected


def test_adapters_are_on_the_device_of_the_model():
    adapters = add_adapters(nn.ModuleDict({name: nn.Linear(4, 4) for name in NAMES}).to("meta"), NAMES, rank=2, alpha=4)
    assert [parameter.device.type for parameter in adapters.values()] == ["meta"] * 4


class Logits(nn.Embedding):
    def forward(self, input_ids):
        return SimpleNamespace(logits=super().forward(input_ids))


def test_a_step_sends_no_number_from_the_cpu_if_the_batch_is_elsewhere(monkeypatch):
    """NCCL refuses it. The meta device stands for a GPU; it has no numbers, so the step ends at its last line."""
    devices = []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: devices.append(tensor.device.type))
    with torch.device("meta"):
        batch, model = {name: torch.zeros(2, 5).long() for name in ("input_ids", "labels")}, Logits(7, 7)
    with pytest.raises(RuntimeError, match="item"):
        step_loss(model, [batch], 2)
    assert devices == ["meta", "meta"]


# ---- packing -----------------------------------------------------------------------------------------------------

WINDOW = 24


def ragged_rows():
    """Prompts and answers of 1 to 9 tokens each; the first row has no prompt."""
    draw = random.Random(3)
    rows = []
    for number in range(9):
        prompt, answer = ([draw.randrange(2, 300) for _ in range(draw.randint(1, 9))] for _ in range(2))
        prompt = prompt if number else []
        rows.append({"input_ids": prompt + answer, "labels": [IGNORED] * len(prompt) + answer})
    return rows


def test_each_row_lies_in_one_window_with_positions_and_a_mask_of_its_own():
    rows, batch = ragged_rows(), pack(ragged_rows(), WINDOW)
    begins = (batch["position_ids"] == 0) & (batch["input_ids"] != 0)  # padding is 0, and no row has that token
    packed = []
    for window, begin in begins.nonzero().tolist():
        allowed = batch["attention_mask"][window, 0]
        length = int(allowed[:, begin].sum())  # of the tokens that may look at the row's first one
        inside = slice(begin, begin + length)
        assert torch.equal(allowed[inside, inside], torch.ones(length, length, dtype=torch.bool).tril())
        assert not allowed[inside, :begin].any() and not allowed[inside, begin + length :].any()
        assert batch["position_ids"][window, inside].tolist() == list(range(length))
        labels = batch["labels"][window, inside].tolist()
        assert labels[0] == IGNORED, "nothing before a row's first token belongs to it"
        packed.append((batch["input_ids"][window, inside].tolist(), labels[1:]))
    expected = [(row["input_ids"], row["labels"][1:]) for row in rows]
    assert [row for row in expected if row not in packed] == []
    assert batch["input_ids"].shape[0] < len(rows) / 2
    with pytest.raises(InputError, match="a row of 25 tokens does not fit into a window of 24"):
        pack([{"input_ids": [1] * 25, "labels": [1] * 25}], WINDOW)


@pytest.mark.parametrize("forgotten", ["attention_mask", "position_ids"])
def test_without_mask_or_positions_packed_rows_have_another_loss(transformers, tmp_path, forgotten):
    """OPT has learned positions; of Llama, which has rotary ones, notebook 27 shows that it needs the mask alone."""
    model = every_rank_reads(make_opt(tmp_path / "opt"), torch.float64).eval()
    batch, loss = pack(ragged_rows(), WINDOW), step_loss(model, [collate(ragged_rows())], 1)
    rows, length = batch["input_ids"].shape
    plain = {
        "attention_mask": torch.ones(rows, 1, length, length, dtype=torch.bool).tril(),
        "position_ids": torch.arange(length).expand(rows, -1),
    }
    assert step_loss(model, [batch], 1) == pytest.approx(loss, rel=1e-12)
    assert abs(step_loss(model, [batch | {forgotten: plain[forgotten]}], 1) - loss) > 1e-4
