"""A loss that is not finite: a warning, valid JSON, no checkpoint, and the end of the run, in every trainer."""

import json
import math

import pytest
import torch
import warm
from finetune_files import make_examples, make_opt
from reward_files import make_backbone, make_pairs
from training_runs import CODE, ROOT, TRAINER

from ddp_course.base.errors import InputError
from ddp_course.distributed.process_group import World
from ddp_course.training import divergence

PARTS = "model", "head", "embedding", "adapters"  # of a checkpoint that hold weights
# The decay, because GRPO on an untrained model has no rewards, and so no gradient.
DIVERGING = ("--learning-rate", "1e30", "--gradient-clip", "0", "--warmup-steps", "0", "--weight-decay", "1")


@pytest.fixture
def flags(tmp_path):
    backbone, pairs = make_backbone(tmp_path / "backbone"), ("--pairs", make_pairs(tmp_path / "pairs"))
    scripts = ROOT / "ddp_course"
    files = "--model", tmp_path / "opt", "--data", make_examples(tmp_path)["sft"]
    (code := tmp_path / "code.py").write_text(CODE)
    return {
        "minigpt": (TRAINER, "--sample-tokens", 0),
        "reward": (scripts / "reward_ddp.py", "--max-tokens", 32, "--backbone", f"minigpt:{backbone}", *pairs),
        "grpo": (scripts / "grpo_ddp.py", "--new-tokens", 4, "--pretrained", backbone, "--data", code),
        "puzzles": (scripts / "puzzles_ddp.py",),
        "finetune": (scripts / "finetune_ddp.py", "--lora-layers", "q_proj", *files),
        **{name: (scripts / f"{name}_ddp.py",) for name in ("parallel", "diloco", "experts")},
    }


@pytest.mark.parametrize("name", ["minigpt", "reward", "grpo", "puzzles", "finetune", "parallel", "diloco", "experts"])
def test_a_run_that_diverges_ends_with_an_error_and_keeps_its_last_good_checkpoint(flags, tmp_path, name):
    """The first steps are healthy and saved; then the weights overflow."""
    script, *own = flags[name]
    if name == "finetune":
        pytest.importorskip("transformers")
        make_opt(tmp_path / "opt")
    common = [*own, *"--preset tiny --checkpoint-every 1 --log-every 1 --validate-every 0".split()]
    common += ["--run-dir", tmp_path / "run"]
    assert warm.single_process(script, *common, "--steps", 2).returncode == 0
    good = (tmp_path / "run/checkpoints/step_000002/state.pt").read_bytes()
    done = warm.single_process(script, *common, "--steps", 9, "--resume", "auto", *DIVERGING)
    assert done.returncode == 1, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "diverged" in errors[0] and "Traceback" not in done.stderr, done.stderr
    assert (tmp_path / "run/checkpoints/step_000002/state.pt").read_bytes() == good
    for saved in (tmp_path / "run/checkpoints").glob("step_*/state.pt"):
        state = torch.load(saved, weights_only=True)
        weights = [tensor for part in PARTS for tensor in state.get(part, {}).values()]
        assert all(tensor.isfinite().all() for tensor in weights), saved
    for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert "UserWarning" not in done.stderr, done.stderr


def test_a_loss_that_is_not_finite_is_a_warning_with_step_and_rank(monkeypatch, capsys):
    """Rank 1 of two has the NaN; a finite loss in between resets the count."""
    world = World(0, 0, 2, torch.device("cpu"))

    monkeypatch.setattr(divergence, "gather_objects", lambda own_is_finite: [own_is_finite, False])
    watch = divergence.LossWatch(world, most=2)
    for step, loss in enumerate((1.0, math.nan, 2.0, math.inf)):
        watch.check(step, loss, own_loss=0.5)
    printed = capsys.readouterr().err
    assert "the loss of step 1 is nan, on rank 1 (1 in a row; --max-nonfinite-steps 2" in printed
    assert "the loss of step 3 is inf, on rank 1 (1 in a row" in printed
    with pytest.raises(InputError, match="the run has diverged: the loss of step 4 is nan, on rank 1, as in the 2 st"):
        watch.check(4, math.nan, own_loss=torch.tensor(0.5))
