"""Adapters by hand and the losses of fine-tuning, on one process; notebook 27 runs them on several."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ddp_course.post_training.fine_tuning import IGNORED, answer_loss, collate, dpo_loss, step_loss
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

    def forward(self, tokens):
        return SimpleNamespace(logits=self.v_proj(torch.tanh(self.q_proj(self.table(tokens).cumsum(1)))))


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
