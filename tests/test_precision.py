"""--precision: the choice of auto, made by rank 0 and kept in checkpoints, and what the switches mean."""

import json
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
import warm
from disturbance import copy_up_to
from training_runs import assert_same_run, train_here

from ddp_course.base.errors import InputError
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig, causal_attention, set_attention
from ddp_course.training import precision
from ddp_course.training.precision import Arithmetic, choose_attention, fastest, set_matmul_precision

CPU = torch.device("cpu")
AUTO = ("--precision", "auto", "--steps", 4, "--checkpoint-every", 2)
OUTCOMES = {  # seconds of float32, of bfloat16 with fused attention, and with attention by plain operations
    "float32 wins": ((1.0, 2.0, 3.0), Arithmetic("float32", "fused")),
    "bfloat16 wins": ((2.0, 1.0, 3.0), Arithmetic("bfloat16", "fused")),
    "bfloat16 wins with math attention": ((2.0, 3.0, 1.0), Arithmetic("bfloat16", "math")),
    "bfloat16 saves too little": ((1.0, 0.99, 0.98), Arithmetic("float32", "fused")),
}


def fake_trials(monkeypatch, seconds):
    """A machine with bfloat16 units, on which the trials take these seconds."""
    ways = [Arithmetic("float32", "fused"), Arithmetic("bfloat16", "fused"), Arithmetic("bfloat16", "math")]
    by_way = dict(zip(ways, seconds, strict=True))
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: True)
    monkeypatch.setattr(precision, "TRIAL_SECONDS", 0.0)
    monkeypatch.setattr(precision, "seconds_of", lambda way, trial, device: by_way[way])


def arithmetic_of(run_dir):
    settings = json.loads((run_dir / "config.json").read_text())
    return Arithmetic(settings["precision"], settings["attention"])


def test_the_compiler_gets_the_model_inside_the_wrapper(tmp_path, monkeypatch):
    """PyTorch's own advice, and the faster way where it was measured; validation and samples use the model itself."""
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model, **_: compiled.append(type(model)) or model)
    train_here(tmp_path, "--compile", "--steps", 2)
    assert compiled == [MiniGPT]


@pytest.mark.parametrize(("seconds", "right"), OUTCOMES.values(), ids=OUTCOMES)
def test_auto_takes_the_fastest_arithmetic_and_says_so(tmp_path, monkeypatch, seconds, right):
    fake_trials(monkeypatch, seconds)
    printed = train_here(tmp_path, *AUTO)
    assert arithmetic_of(tmp_path) == right
    (line,) = [line for line in printed.splitlines() if line.startswith("--precision auto")]
    assert f"takes {right.precision}; a trial took: float32 with fused attention {seconds[0] * 1e3:.1f} ms" in line
    assert torch.backends.cuda.flash_sdp_enabled(), "a choice of this run has become a switch of the whole process"


def test_a_resumed_run_keeps_its_arithmetic(tmp_path, monkeypatch):
    fake_trials(monkeypatch, (2.0, 3.0, 1.0))
    train_here(tmp_path / "whole", *AUTO)
    run_dir = copy_up_to(tmp_path / "whole", 2, tmp_path / "run")
    fake_trials(monkeypatch, (1.0, 2.0, 3.0))  # another machine, or another moment
    assert "a trial took" not in train_here(run_dir, *AUTO, "--resume", "auto")
    assert arithmetic_of(run_dir) == Arithmetic("bfloat16", "math")
    assert_same_run(run_dir, tmp_path / "whole", 4)


def test_nothing_is_timed_without_a_choice(tmp_path, monkeypatch):
    monkeypatch.setattr(precision, "seconds_of", lambda *_: pytest.fail("timed"))
    train_here(tmp_path / "chosen", "--precision", "bfloat16", "--steps", 1)
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: False)
    train_here(tmp_path / "no_units", "--precision", "auto", "--steps", 1)
    assert arithmetic_of(tmp_path / "no_units").precision == "float32"


def test_rank_0_decides_for_all(tmp_path):
    """On each rank another arithmetic would be the fastest."""
    (tmp_path / "disagree.py").write_text("""
import json
from dataclasses import asdict

from ddp_course.distributed import process_group
from ddp_course.training import precision

world = process_group.start(30, "cpu")
precision.has_bfloat16, precision.TRIAL_SECONDS = lambda device: True, 0.0
precision.seconds_of = lambda way, trial, device: 1.0 if (way.precision == "float32") == world.rank else 2.0
print(json.dumps(asdict(precision.choose_precision(world, "auto", 64, {}, lambda: None))))
process_group.stop()
""")
    run = warm.ranks(tmp_path / "disagree.py", nproc=2)
    assert run.results[0] == run.results[1] == {"precision": "bfloat16", "attention": "fused"}


def test_the_trials_are_real_work(monkeypatch):
    monkeypatch.setattr(precision, "TRIAL_SECONDS", 0.0)
    weight, kinds = torch.ones(4, 4, requires_grad=True), []

    def trial(attention):
        product = weight @ weight
        kinds.append((product.dtype, attention))
        return product.float().sum()

    _, seconds = fastest(trial, CPU)
    assert kinds == [(torch.float32, "fused"), (torch.bfloat16, "fused"), (torch.bfloat16, "math")] * 3
    assert all(0 < duration < float("inf") for duration in seconds.values()) and weight.grad is not None


def attend(attention, inputs):
    """The result of causal attention, and the gradients of the sum of its squares."""
    result = causal_attention(*inputs, 0.0, attention)
    return result, *torch.autograd.grad(result.square().sum(), inputs)


def test_both_ways_of_attention_are_the_same(monkeypatch):
    inputs = [torch.randn(2, 3, 7, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    fused = attend("fused", inputs)
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *_, **__: pytest.fail("torch's"))
    for observed, expected in zip(fused, attend("math", inputs), strict=True):
        torch.testing.assert_close(observed, expected, rtol=0, atol=1e-12)
    torch.manual_seed(0)
    ones = [torch.zeros(1, 1, 4000, 1), torch.zeros(1, 1, 4000, 1), torch.ones(1, 1, 4000, 1)]
    assert causal_attention(*ones, 0.25, "math").mean().item() == pytest.approx(1, abs=0.02)  # what stays is scaled up
    assert causal_attention(*ones, 0.25, "math")[0, 0, 0].item() in (0.0, pytest.approx(1 / 0.75))


def test_a_model_computes_attention_as_its_argument_says(monkeypatch):
    config = MiniGPTConfig(vocab_size=16, context=8, layers=1, heads=2, width=8)
    tokens, fused = torch.arange(8)[None], mock.Mock(side_effect=F.scaled_dot_product_attention)
    monkeypatch.setattr(F, "scaled_dot_product_attention", fused)
    model = MiniGPT(config, "math")
    model(tokens)
    assert not fused.called
    set_attention(model, "fused")
    model(tokens)
    assert fused.called


def test_float32_means_float32_and_tf32_means_tf32():
    set_matmul_precision("tf32")
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    set_matmul_precision("float32")
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"


def test_a_chosen_precision_never_depends_on_a_clock():
    assert choose_attention("bfloat16", CPU, 512) == "math"
    assert choose_attention("bfloat16", CPU, 513) == choose_attention("float32", CPU, 64) == "fused"
    assert choose_attention("tf32", torch.device("cuda"), 64) == "fused"
    with pytest.raises(InputError, match="--precision tf32 needs a GPU"):
        choose_attention("tf32", CPU, 64)
