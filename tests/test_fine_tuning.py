"""Adapters by hand and the losses of fine-tuning, on one process; notebook 27 runs them on several."""

import math
import random
from types import SimpleNamespace

import pytest
import torch
from finetune_files import make_opt
from torch import nn

from ddp_course.base.errors import InputError
from ddp_course.post_training.checkpoint_loading import every_rank_reads
from ddp_course.post_training.fine_tuning import IGNORED, answer_loss, collate, dpo_loss, pack, step_loss
from ddp_course.post_training.lora import LoRA, add_lora, merge, trainable, untrained

pytestmark = pytest.mark.smoke
NAMES = ("q_proj", "v_proj")


class Language(nn.Module):
    """Logits of 8 tokens; a layer of each name."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.q_proj, self.v_proj = nn.Embedding(8, 4), nn.Linear(4, 4), nn.Linear(4, 8)
        self.double()

    def forward(self, input_ids):
        return SimpleNamespace(logits=self.v_proj(torch.tanh(self.q_proj(self.table(input_ids).cumsum(1)))))


def rows(*answers):
    prompt = [1, 2]
    return [{"input_ids": [*prompt, *answer], "labels": [IGNORED] * 2 + [*answer]} for answer in answers]


def trained(model, steps=2):
    optimizer = torch.optim.AdamW(trainable(model).values(), lr=0.1)
    for _ in range(steps):
        step_loss(model, [collate(rows([3, 4, 5], [6]))], 1)
        optimizer.step()
        optimizer.zero_grad()
    return model


def test_a_merged_model_computes_what_its_adapters_did():
    tokens, plain = torch.tensor([[1, 2, 3]]), Language()
    model = add_lora(Language(), NAMES)
    assert torch.equal(model(tokens).logits, plain(tokens).logits)
    logits = trained(model)(tokens).logits
    assert not torch.allclose(logits, plain(tokens).logits)
    torch.testing.assert_close(merge(model)(tokens).logits, logits)
    assert not any(isinstance(module, LoRA) for module in model.modules())


def test_a_layer_that_did_not_move_is_named():
    for names, expected in ((NAMES, []), (("q_proj", "value"), ["v_proj"])):
        model = add_lora(Language(), names)
        initial = {name: parameter.detach().clone() for name, parameter in trainable(model).items()}
        assert untrained(model, initial, NAMES) == list(NAMES)
        assert untrained(trained(model), initial, NAMES) == expected


def test_a_step_is_one_mean_over_its_answer_tokens():
    whole, parts = collate(rows([3, 4, 5], [6])), [collate(rows([3, 4, 5])), collate(rows([6]))]
    loss, tokens = answer_loss(Language()(whole["input_ids"]).logits, whole["labels"])
    assert tokens == 4 and whole["labels"].tolist()[1] == [IGNORED, IGNORED, 6, IGNORED, IGNORED]
    assert step_loss(Language(), parts, 1) == pytest.approx((loss / 4).item(), rel=1e-12)
    assert step_loss(Language(), parts, 1, "micro-batch") != pytest.approx((loss / 4).item(), rel=1e-3)
    assert step_loss(Language(), [*parts, collate([])], 1) == pytest.approx((loss / 4).item(), rel=1e-12)


def test_dpo_begins_at_log_2_and_prefers_the_chosen_answer():
    model, batch = Language(), collate(rows([3, 4], [5]) + rows([6, 7], [3]))

    class Switched(Language):
        def disable_adapter(self):
            return torch.no_grad()

    switched = Switched()
    assert dpo_loss(model, switched, batch).item() == pytest.approx(math.log(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dpo_loss(model, switched, batch).backward()
    optimizer.step()
    assert dpo_loss(model, switched, batch).item() < math.log(2)


# ---- packing -----------------------------------------------------------------------------------------------------

WINDOW = 24


def ragged_rows(count=9):
    """Prompts and answers of 1 to 9 tokens each; the first row has no prompt."""
    draw = random.Random(3)
    rows = []
    for number in range(count):
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


@pytest.fixture(scope="module")
def opt(tmp_path_factory):
    pytest.importorskip("transformers")
    return every_rank_reads(make_opt(tmp_path_factory.mktemp("model") / "opt"), torch.float64).eval()


def loss_and_gradient(model, batch):
    model.zero_grad()
    loss = step_loss(model, [batch], 1)
    return loss, torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def test_packed_rows_have_the_loss_and_the_gradient_of_padded_ones(opt):
    loss, gradient = loss_and_gradient(opt, collate(ragged_rows()))
    packed_loss, packed_gradient = loss_and_gradient(opt, pack(ragged_rows(), WINDOW))
    assert packed_loss == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close(packed_gradient, gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("forgotten", ["attention_mask", "position_ids"])
def test_without_mask_or_positions_packed_rows_have_another_loss(opt, forgotten):
    batch = pack(ragged_rows(), WINDOW)
    rows, length = batch["input_ids"].shape
    plain = {
        "attention_mask": torch.ones(rows, 1, length, length, dtype=torch.bool).tril(),
        "position_ids": torch.arange(length).expand(rows, -1),
    }
    loss, _ = loss_and_gradient(opt, collate(ragged_rows()))
    other, _ = loss_and_gradient(opt, batch | {forgotten: plain[forgotten]})
    assert abs(other - loss) > 1e-4
