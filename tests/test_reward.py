"""The reward model: N processes train as one does, a stopped run resumes bit-exactly, and it learns what is better."""

import functools
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from disturbance import copy_up_to
from reward_files import make_backbone, make_pairs
from trainer_runs import run_jobs
from training_runs import assert_same_run, checkpoint, in_this_process, largest_gap, merged, metrics

from ddp_course import reward_ddp
from ddp_course.base.errors import InputError
from ddp_course.base.intervals import cluster_interval
from ddp_course.data import density
from ddp_course.data.pairs import TRAIN, VALIDATION, pairs_of_step, read_pairs
from ddp_course.launcher import RunFailed, torchrun
from ddp_course.models.reward import RewardHead
from ddp_course.post_training.backbones import load_backbone
from ddp_course.post_training.reward_model import RewardModel, load_reward_model
from ddp_course.training import memory
from ddp_course.training.command_line import parse

STEPS = 4
TINY = ("--preset", "tiny", "--max-tokens", 40, "--head-width", 8, "--device", "cpu", "--most-misses", 0)


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """A folder with `backbone` (a run directory) and `pairs`."""
    folder = tmp_path_factory.mktemp("material")
    make_backbone(folder / "backbone")
    make_pairs(folder / "pairs")
    return folder


def flags_of(material, run_dir, *more):
    named = ("--backbone", f"minigpt:{material / 'backbone'}", "--pairs", material / "pairs", "--run-dir", run_dir)
    return merged(*TINY, *named, *more)


# ---- any number of processes is one ------------------------------------------------------------------------------

# 10 pairs do not divide by 4 ranks, and of 3 pairs one rank has none. Texts are ragged, weights from 0.2 to 3.
CASES = {
    "mean": ("--weight-mode", "mean", "--pairs-per-update", 10),
    "mean, capped": ("--weight-mode", "mean", "--pairs-per-update", 10, "--weight-cap", 1.2),
    "mean, no cap": ("--weight-mode", "mean", "--pairs-per-update", 10, "--weight-cap", "None"),
    "sum": ("--weight-mode", "sum", "--pairs-per-update", 10, "--weight-cap", "None"),
    "none": ("--weight-mode", "none", "--pairs-per-update", 10),
    "a rank without pairs": ("--weight-mode", "mean", "--pairs-per-update", 3),
}


@pytest.fixture(scope="module")
def run_of(material, tmp_path_factory):
    """A function: (ranks, case) -> run directory. As many ranks run all cases in one launch."""

    @functools.cache
    def folder_of(nproc):
        folder = tmp_path_factory.mktemp("runs")
        common = ("--precision", "float64", "--steps", STEPS, "--gradient-clip", 0.05, "--checkpoint-every", 0)
        jobs = {
            case: {"script": "reward", "flags": flags_of(material, folder / case, *common, *more)}
            for case, more in (CASES | {"own normaliser": CASES["mean, no cap"]}).items()
        }
        jobs["own normaliser"]["fault"] = "own normaliser"
        assert set(run_jobs(folder, jobs, nproc).outcomes.values()) == {"0"}
        return folder

    return lambda nproc, case: folder_of(nproc) / case


NUMBERS = "loss unweighted_loss accuracy margin weight_mean factor_mean grad_norm val_loss val_accuracy val_margin"
NUMBERS += " val_pairs val_baseline val_gained val_lost val_gain_low val_gain_high"


@pytest.mark.parametrize("nproc", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_n_processes_equal_one(run_of, case, nproc):
    single, several = run_of(1, case), run_of(nproc, case)
    for key in NUMBERS.split():
        assert metrics(several, key) == pytest.approx(metrics(single, key), abs=1e-10, rel=1e-10), key
    assert len(metrics(single)) == STEPS
    assert largest_gap(checkpoint(several, STEPS)["head"], checkpoint(single, STEPS)["head"]) <= 1e-10


@pytest.mark.parametrize("nproc", [2, 4])
def test_a_normaliser_of_each_ranks_own_is_noticed(run_of, nproc):
    wrong, right = run_of(nproc, "own normaliser"), run_of(1, "mean, no cap")
    assert largest_gap(checkpoint(wrong, STEPS)["head"], checkpoint(right, STEPS)["head"]) > 1e-5


def test_the_modes_train_three_different_heads(run_of):
    heads = [checkpoint(run_of(1, mode), STEPS)["head"] for mode in ("none", "mean", "sum")]
    assert min(largest_gap(heads[a], heads[b]) for a, b in ((0, 1), (0, 2), (1, 2))) > 1e-4
    assert metrics(run_of(1, "mean, no cap"), "factor_mean") == pytest.approx(dict.fromkeys(range(1, STEPS + 1), 1.0))
    assert max(metrics(run_of(1, "mean, capped"), "factor_mean").values()) < 1
    assert metrics(run_of(1, "sum"), "factor_mean") == pytest.approx(metrics(run_of(1, "sum"), "weight_mean"))
    assert len({round(mean, 3) for mean in metrics(run_of(1, "sum"), "weight_mean").values()}) == STEPS


def test_the_loss_without_weights_is_logged_beside_the_weighted_one(run_of):
    """Before the first step all modes have the same head, so the same unweighted loss."""
    first = {
        mode: [metrics(run_of(1, mode), key)[1] for key in ("loss", "unweighted_loss")]
        for mode in ("none", "sum", "mean, no cap")
    }
    assert first["none"][0] == first["none"][1]
    assert first["sum"][1] == first["mean, no cap"][1] == pytest.approx(first["none"][1])
    assert len({round(loss, 9) for loss, _ in first.values()}) == 3


@pytest.mark.parametrize("case", ["mean, no cap", "sum", "none"])
def test_the_first_loss_and_gradient_are_those_of_the_data(run_of, material, case):
    """Not only equal to each other, but right: step 0 in the plainest way, one text at a time, without padding."""
    config = parse(reward_ddp.PRESETS, flags_of(material, ""))
    pairs = read_pairs(material / "pairs" / TRAIN)
    backbone = load_backbone(f"minigpt:{material / 'backbone'}")
    torch.manual_seed(config.seed)
    head = RewardHead(18, 8).double()
    model = backbone.model.double()
    weights = density.computed([pair.prompt for pair in pairs])
    mean_weight = sum(weights[density.key_of(pair.prompt)] for pair in pairs) / len(pairs)

    def reward(prompt, completion):
        completion = list(completion.encode())
        context = [0, *prompt.encode()][-(40 - len(completion)) :]
        tokens = torch.tensor([context + completion])
        with torch.no_grad():
            states = model.model(tokens)[0]
            surprise = -model.output(states).log_softmax(-1)[range(len(context) - 1, tokens.shape[1] - 1), completion]
            mean = states[len(context) :].mean(0)
        return head(torch.cat([mean, surprise.mean()[None], surprise.max()[None]])[None])[0]

    total = weighted = 0
    chosen = [pairs[n] for n in pairs_of_step(config.seed, 0, 10, len(pairs))]
    for pair in chosen:
        weight = weights[density.key_of(pair.prompt)] / mean_weight if case != "none" else 1.0
        margin = reward(pair.prompt, pair.chosen) - reward(pair.prompt, pair.rejected)
        weighted = weighted + weight * torch.log(1 + torch.exp(-margin))
        total += weight
    loss = weighted / (total if case == "mean, no cap" else len(chosen))
    loss.backward()
    norm = torch.stack([parameter.grad.norm() for parameter in head.parameters()]).norm().item()
    assert metrics(run_of(2, case))[1] == pytest.approx(loss.item(), abs=1e-10)
    assert metrics(run_of(2, case), "grad_norm")[1] == pytest.approx(norm, abs=1e-10)


# ---- in this process ---------------------------------------------------------------------------------------------


def train(material, run_dir, *more) -> str:
    return in_this_process(reward_ddp.train, parse(reward_ddp.PRESETS, flags_of(material, run_dir, *more)))


def test_it_learns_and_what_it_learned_can_be_loaded(material, tmp_path):
    make_pairs(tmp_path / "pairs", train=200, held_out=100, learnable=True)
    flags = ("--pairs", tmp_path / "pairs", "--steps", 60, "--learning-rate", 0.02)
    printed = train(material, tmp_path / "run", *flags)
    accuracies = metrics(tmp_path / "run", "val_accuracy")
    assert accuracies[60] > 0.85  # of chance 0.5; the shortest texts have one letter to tell them apart
    baseline, gained, lost = (metrics(tmp_path / "run", f"val_{name}")[60] for name in ("baseline", "gained", "lost"))
    assert accuracies[60] == pytest.approx(baseline + gained - lost)
    assert f"pair accuracy on held-out files {accuracies[60]:.3f} (100 pairs)" in printed
    assert f"gain {gained - lost:+.3f} (95 % interval over files" in printed

    model, best = load_reward_model(tmp_path / "run"), best_of(tmp_path / "run")
    held_out = read_pairs(tmp_path / "pairs" / VALIDATION)
    prompts = [pair.prompt for pair in held_out]
    texts = [(prompts, [getattr(pair, side) for pair in held_out]) for side in ("chosen", "rejected")]
    chosen, rejected = (model.score(*side) for side in texts)
    assert chosen.shape == (100,) and chosen.dtype == torch.float32 and not chosen.requires_grad
    assert (chosen > rejected).float().mean().item() == pytest.approx(accuracies[best])
    likelier = torch.lt(*(model.features(*side)[:, -2] for side in texts))  # by their mean surprise
    gains = (chosen > rejected).double() - likelier.double()
    interval = cluster_interval(gains, [pair.source or n for n, pair in enumerate(held_out)], draws=1000)
    logged = [metrics(tmp_path / "run", f"val_{name}")[best] for name in ("baseline", "gain_low", "gain_high")]
    assert logged == pytest.approx([likelier.double().mean().item(), interval.low, interval.high])
    model.train()
    assert not any(p.requires_grad for p in model.parameters()) and not model.backbone.training


def test_resuming_from_any_checkpoint_is_bit_equal(material, tmp_path):
    """On two ranks, and after a kill: test_chaos.py."""
    keys = "loss", "accuracy", "margin", "weight_mean", "grad_norm", "val_loss"
    every = "--steps 6 --checkpoint-every 1 --keep-checkpoints 0 --validate-every 1".split()
    every += ["--learning-rate", "0.9"]  # too much, so that the loss soon rises again
    train(material, tmp_path / "whole", *every)
    for step in range(1, 6):
        run_dir = copy_up_to(tmp_path / "whole", step, tmp_path / str(step))
        train(material, run_dir, *every, "--resume", "auto")
        assert_same_run(run_dir, tmp_path / "whole", 6, keys, learnt="head")
        assert (run_dir / "best").read_text() == (tmp_path / "whole" / "best").read_text()
    assert best_of(tmp_path / "whole") in (2, 3, 4), "best before some of the steps resumed from, and after others"


def test_a_run_that_is_asked_to_stop_saves(material, tmp_path):
    """When its time is spent; SIGTERM is asked for in the same place."""
    asked = "--steps 5000 --max-seconds 0.5 --checkpoint-every 0 --validate-every 0".split()
    assert "the time budget is spent" in train(material, tmp_path / "run", *asked)
    [saved] = (tmp_path / "run" / "checkpoints").iterdir()
    assert saved.name == f"step_{max(metrics(tmp_path / 'run')):06d}"


def best_of(run_dir) -> int:
    """The step with the lowest loss on the held-out pairs, by the metrics; of equals, the earliest."""
    losses = metrics(run_dir, "val_loss")
    return min(sorted(losses), key=losses.get)


def test_the_best_checkpoint_is_named_kept_and_loaded(material, tmp_path):
    """Although only the newest one is to be kept, and the best step is none of those that save."""
    run_dir = tmp_path / "run"
    flags = "--steps 9 --validate-every 2 --checkpoint-every 3 --keep-checkpoints 1 --learning-rate 0.4"
    train(material, run_dir, *flags.split())
    best, accuracies, losses = best_of(run_dir), metrics(run_dir, "val_accuracy"), metrics(run_dir, "val_loss")
    assert best not in (3, 6, 9) and losses[best] < losses[9]
    assert (run_dir / "best").read_text() == f"step_{best:06d}\n"
    assert (run_dir / "latest").read_text() == "step_000009\n"
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == [f"step_{best:06d}", "step_000009"]

    held_out = read_pairs(material / "pairs" / VALIDATION)
    prompts = [pair.prompt for pair in held_out]

    def accuracy():
        model = load_reward_model(run_dir)
        chosen, rejected = ([getattr(pair, side) for pair in held_out] for side in ("chosen", "rejected"))
        return (model.score(prompts, chosen) > model.score(prompts, rejected)).float().mean().item()

    assert accuracy() == pytest.approx(accuracies[best])
    (run_dir / "checkpoints" / f"step_{best:06d}" / "state.pt").write_bytes(b"damaged")
    assert accuracy() == pytest.approx(accuracies[9])


@pytest.fixture
def model(material):
    backbone = load_backbone(f"minigpt:{material / 'backbone'}")
    torch.manual_seed(1)
    return RewardModel(backbone, RewardHead(18, 8), max_tokens=40, micro_batch_size=4).double()


def test_padding_and_other_texts_never_change_a_score(model, material):
    pairs = read_pairs(material / "pairs" / TRAIN)
    prompts = [pair.prompt for pair in pairs] + ["", "a prompt"]
    completions = [pair.chosen for pair in pairs] + ["x", "b" * 99]
    batched = model.features(prompts, completions)
    separate = torch.cat([model.features([p], [c]) for p, c in zip(prompts, completions, strict=True)])
    assert (batched - separate).abs().max() < 1e-12
    tokens, starts, lengths = torch.randint(1, 255, (3, 30)), torch.tensor([4, 9, 2]), torch.tensor([11, 30, 3])
    other = tokens.clone()
    other[torch.arange(30) >= lengths[:, None]] = 7
    assert (other != tokens).any()
    assert (model.backbone(tokens, starts, lengths) - model.backbone(other, starts, lengths)).abs().max() < 1e-12


def test_an_empty_completion_has_a_score(model):
    scores = model.score(["", "x = 1\n", "y"], ["", "", "z"])
    assert scores.isfinite().all()


def test_the_backbone_stays_frozen_and_in_eval_mode(model):
    model.train()
    assert not any(module.training for module in model.backbone.modules())
    model.backbone.assert_frozen()
    model.head(model.features(["a", "b"], ["c", "d"])).sum().backward()
    assert all(parameter.grad is None for parameter in model.backbone.parameters())
    assert all(parameter.grad is not None for parameter in model.head.parameters())
    model.backbone.model.blocks[1].expand.train()
    with pytest.raises(RuntimeError, match="blocks.1.expand is in training mode"):
        model.backbone.assert_frozen()
    model.backbone.model.final_norm.weight.requires_grad_(True)
    with pytest.raises(RuntimeError, match="final_norm.weight takes part in training"):
        model.backbone.assert_frozen()


# ---- bad input ---------------------------------------------------------------------------------------------------

BAD_FLAGS = {
    "no backbone": ("--backbone=", "no backbone '': a name has the form minigpt:PATH, hf:FOLDER_OR_NAME or nanochat:"),
    "no kind": ("--backbone {tmp}/run", "a name has the form minigpt:PATH"),
    "an unknown kind": ("--backbone gpt:x", "no backbone 'gpt:x'"),
    "no such run": ("--backbone minigpt:{tmp}/none", "there is no such checkpoint folder"),
    "a damaged backbone": ("--backbone minigpt:{tmp}/damaged", "does not match its checksum"),
    "another kind of checkpoint": ("--backbone minigpt:{tmp}/reward", "is not a checkpoint of minigpt_ddp"),
    "a missing nanochat": ("--backbone nanochat:sft", "needs the package nanochat, which cannot be imported"),
    "a context too short": ("--max-tokens 49", "--max-tokens is 49, expected 2 to 48, the context of minigpt:"),
    "no pairs": ("--pairs {tmp}/none.jsonl", "cannot read"),
    "few pairs": ("--pairs {tmp}/few.jsonl", "has too few prompts to hold some out"),
    "no code": ("--pairs {tmp}/prose", "no pairs can be made from"),
    "weights without a mode": ("--weights {tmp}/other.json", "has no effect with --weight-mode none; give mean or sum"),
    "no weights": ("--weight-mode mean --weights {tmp}/none.json", "cannot read"),
    "weights of other prompts": ("--weight-mode mean --weights {tmp}/other.json", "60 of 60 prompts have no weight"),
    "a cap below the average": ("--weight-cap 0.5", "--weight-cap must be at least 1, the average, not 0.5"),
    "an unknown mode": ("--weight-mode median", "invalid choice: 'median'"),
    "no pairs a step": ("--pairs-per-update 0", "--pairs-per-update must be at least 1"),
    "misses above one": ("--most-misses 1.5", "--most-misses must be from 0 to below 1, not 1.5"),
    "a checkpoint of another script": ("--resume {backbone}", "expected a checkpoint with head, optimizer, found"),
    "another head": ("--resume {tmp}/reward/checkpoints/step_000002 --head-width 9", "it has head_width 8, this"),
    "another backbone": ("--resume {tmp}/reward/checkpoints/step_000002 --backbone minigpt:{tmp}/twin", "has backbone"),
    "other pairs": ("--resume {tmp}/reward/checkpoints/step_000002 --pairs {tmp}/learnable", "it has pairs "),
}


@pytest.fixture(scope="module")
def inputs(material, tmp_path_factory):
    """A folder with everything that BAD_FLAGS names."""
    tmp = tmp_path_factory.mktemp("inputs")
    (tmp / "few.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    (tmp / "other.json").write_text('{"0123456789abcdef": 1}')
    (tmp / "prose").mkdir()
    (tmp / "prose" / "a.txt").write_text("To be, or not to be: (that is the question\n" * 9)
    damaged = make_backbone(tmp / "moved").rename(tmp / "damaged")
    os.truncate(damaged / "state.pt", 1000)
    make_backbone(tmp / "twin", seed=2)
    make_pairs(tmp / "learnable", learnable=True)
    train(material, tmp / "reward", "--steps", 2)
    return tmp


@pytest.mark.parametrize("what", BAD_FLAGS)
def test_bad_input_is_named(what, inputs, material, tmp_path):
    flags, message = BAD_FLAGS[what]
    backbone = material / "backbone" / "checkpoints" / "step_000001"
    flags = [flag.format(tmp=inputs, backbone=backbone) for flag in flags.split()]
    with pytest.raises(InputError) as error:
        train(material, tmp_path / "run", "--steps", 3, *flags)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_the_memory_of_a_micro_batch_is_asked_for(material, tmp_path, monkeypatch):
    """A million texts with logits of 256 bytes' probabilities take 1 GB; the features of the step, 0.1 GB."""
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=int(0.5e9)))
    with pytest.raises(InputError, match="this training run needs at least 1.0 GiB of memory"):
        train(material, tmp_path / "run", "--pairs-per-update", 5 * 10**5, "--micro-batch-size", 10**6)


@pytest.mark.usefixtures("warm_launches")
def test_one_rank_of_two_prints_the_error_in_one_line(material, tmp_path):
    flags = flags_of(material, tmp_path / "run", "--backbone", "minigpt:nowhere")
    with pytest.raises(RunFailed) as failed:
        torchrun(reward_ddp.__file__, *flags, nproc=2, quiet=True, timeout=600)
    lines = [line for lines in failed.value.run.lines.values() for line in lines]
    assert [line for line in lines if line.startswith("error: ")] and not any("Traceback" in line for line in lines)
    assert sum("there is no such checkpoint folder" in line for line in lines) == 1


@pytest.mark.parametrize("what", ["pre-training", "another backbone", "a backbone that is gone"])
def test_a_reward_model_that_cannot_be_loaded_is_named(what, inputs, material):
    path, backbone, message = {
        "pre-training": (material / "backbone", "", "is not a checkpoint of reward_ddp but"),
        "another backbone": (inputs / "reward", f"minigpt:{inputs / 'twin'}", "was trained on another backbone"),
        "a backbone that is gone": (inputs / "reward", "minigpt:gone", "there is no such checkpoint folder"),
    }[what]
    with pytest.raises(InputError, match=message):
        load_reward_model(Path(path), backbone=backbone)
