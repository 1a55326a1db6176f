"""The plain model that `make bench` compares with does the work of MiniGPT: the same loss, the same gradients."""

from pathlib import Path

import pytest
import torch

from ddp_course.models import minigpt

pytestmark = pytest.mark.smoke


def test_the_plain_model_computes_minigpts_loss_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    from plain_trainer import MaskedAttention, PlainMiniGPT

    model_config = minigpt.MiniGPTConfig(vocab_size=17, context=8, layers=2, heads=2, width=8)
    fast = minigpt.MiniGPT(model_config).double()
    monkeypatch.setattr(minigpt, "Attention", MaskedAttention)
    plain = PlainMiniGPT(model_config).double()
    plain.load_state_dict(fast.state_dict(), strict=False)  # the plain model also has a mask

    tokens, targets = torch.randint(17, (2, 3, 8)).unbind()
    for model in (fast, plain):
        model(tokens, targets).backward()
    torch.testing.assert_close(plain(tokens, targets), fast(tokens, targets))
    expected = {name: weight.grad for name, weight in fast.named_parameters()}
    torch.testing.assert_close({name: weight.grad for name, weight in plain.named_parameters()}, expected)
