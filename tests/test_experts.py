"""Experts that are sharded over ranks equal one process with all of them: losses, norms, weights, moments.

In float64, where a gap below EQUAL is rounding. Jobs with a mistake have gaps that are far larger.
"""

import os

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_
from trainer_runs import plain_adamw, run_jobs, validation_loss
from training_runs import RECORDED_LOG, assert_same_run, checkpoint, in_this_process, largest_gap, merged, metrics

from ddp_course import experts_ddp
from ddp_course.base.errors import InputError
from ddp_course.data.token_file import open_tokens, prepare
from ddp_course.data.windows import micro_batches
from ddp_course.models.minigpt import MiniGPTConfig
from ddp_course.trainers.minigpt_experts import MixtureGPT, mixture_parameter_count
from ddp_course.training.command_line import parse

STEPS, EQUAL = 4, 1e-10
FLAGS = (
    "--data",
    RECORDED_LOG,
    *"--precision float64 --layers 2 --heads 2 --width 16 --context 16 --tokens-per-update 256".split(),
    *"--micro-batch-size 4 --validation-windows 11 --validate-every 2 --checkpoint-every 2".split(),
    *"--keep-checkpoints 0 --gradient-clip 0.5 --experts 4 --balance 0.1".split(),
    "--steps",
    STEPS,
)
UNLIKE = "--pack --activation-checkpointing --micro-batch-size 2 --gradient-clip 0 --experts-per-token 1".split()
RESUMED = ("--precision", "float32", "--dropout", 0.1, "--check-every", 1)
LOGGED = "loss", "val_loss", "grad_norm", "balance", "busiest"
BROKEN = ("experts averaged over the ranks", "balance of the own choices", "own norm", "gradients not added")


def flags(run_dir, *more):
    return merged("--preset", "tiny", "--run-dir", run_dir, *FLAGS, *more)


def train_one(run_dir, *more):
    return in_this_process(experts_ddp.train, parse(experts_ddp.PRESETS, flags(run_dir, *more)))


def job(folder, *more, **further):
    return {"script": "experts", "flags": flags(folder, *more), **further}


@pytest.fixture(scope="module")
def single_process(tmp_path_factory):
    """The folder of the runs on one process; test_one_process_is_the_definition checks them."""
    folder = tmp_path_factory.mktemp("one")
    train_one(folder / "plain")
    train_one(folder / "unlike", *UNLIKE)
    return folder


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def runs(request, tmp_path_factory, single_process):
    folder = tmp_path_factory.mktemp(f"ranks_{request.param}")
    whole = str(folder / "whole"), 2, str(folder / "resumed")
    jobs = {
        "plain": job(folder / "plain"),
        "replicas": job(folder / "replicas", "--ep", request.param // 2),
        "unlike": job(folder / "unlike", *UNLIKE),
        "whole": job(folder / "whole", *RESUMED),
        "resumed": job(folder / "resumed", *RESUMED, "--resume", "auto", copy=whole),
        "stopped": job(folder / "stopped", *RESUMED, fault="stopped experts"),
        "resumed after a stop": job(
            folder / "resumed after a stop", *RESUMED, "--resume", folder / "stopped/checkpoints/step_000002"
        ),
        "from one process": job(folder / "from one", "--resume", single_process / "plain/checkpoints/step_000002"),
        "bfloat16": job(folder / "bfloat16", "--precision", "bfloat16", "--steps", 2),
        "ep 3": job(folder / "ep 3", "--ep", 3),
        "experts 7": job(folder / "experts 7", "--experts", 7),
    } | {fault: job(folder / fault, fault=fault) for fault in BROKEN}
    return run_jobs(folder, jobs, request.param)


def gap(ours, theirs):
    """The largest distance of a logged number, a weight, or a moment of AdamW."""
    distances = []
    for key in LOGGED:
        own, other = metrics(ours, key), metrics(theirs, key)
        assert own.keys() <= other.keys() and max(own) == STEPS
        distances += [abs(value - other[step]) for step, value in own.items()]
    own, other = checkpoint(ours, STEPS), checkpoint(theirs, STEPS)
    distances.append(largest_gap(own["model"], other["model"]))
    for number, averages in other["optimizer"]["state"].items():
        distances.append(largest_gap(own["optimizer"]["state"][number], averages))
    return max(distances)


@pytest.mark.parametrize("title", ["plain", "replicas", "unlike"])
def test_ranks_are_one_process(runs, single_process, title):
    """Experts on all ranks, on half of them with replicas, and with other settings: several micro-batches, packed."""
    assert runs.outcomes[title] == "0"
    assert gap(runs.folder / title, single_process / ("unlike" if title == "unlike" else "plain")) < EQUAL


@pytest.mark.parametrize("fault", BROKEN)
def test_a_mistake_is_outside_the_tolerance(runs, single_process, fault):
    if runs.outcomes[fault] == "0":
        assert gap(runs.folder / fault, single_process / "plain") > 1e3 * EQUAL
    else:
        assert runs.outcomes[fault].startswith("ReplicasDiffer: copies differ")


class Dense(torch.nn.Module):
    """A mixture by definition: each token's output is the weighted sum of its best experts'."""

    def __init__(self, whole):
        super().__init__()
        self.router, self.experts, self.experts_per_token = whole.router, whole.experts, whole.experts_per_token

    def forward(self, x):
        probabilities = self.router(x).softmax(-1)
        weights, chosen = probabilities.topk(self.experts_per_token)
        mask = torch.zeros_like(probabilities).scatter(-1, chosen, weights)
        self.chosen, self.mean = (mask > 0).double().flatten(0, 1), probabilities.flatten(0, 1).mean(0)
        outputs = [F.gelu(x @ up) @ down for up, down in zip(self.experts.up, self.experts.down, strict=True)]
        return sum(mask[..., number, None] * output for number, output in enumerate(outputs))


def test_one_process_is_the_definition(single_process):
    """The first run again, written plainly: one batch, all experts on all tokens, the balance loss as in papers."""
    config = parse(experts_ddp.PRESETS, flags("nowhere"))
    tokens = open_tokens(prepare(config.data, config.tokenizer, config.vocab_size))
    torch.manual_seed(config.seed)
    model = MixtureGPT(MiniGPTConfig(256, config.context, config.layers, config.heads, config.width), 4, 2).double()
    for block in model.blocks:
        block.mixture = Dense(block.mixture)
    optimizer = plain_adamw(model)
    for step in range(STEPS):
        sizes = {"context": 16, "micro_batch_size": 16, "gradient_accumulation_steps": 1, "rank": 0, "world_size": 1}
        [(inputs, targets)] = micro_batches(tokens.train, seed=config.seed, step=step, **sizes)
        loss = model(inputs, targets) / config.tokens_per_update
        mixtures = [block.mixture for block in model.blocks]
        balance = sum(4 * (m.chosen.mean(0) / 2 * m.mean).sum() for m in mixtures)
        (loss + config.balance * balance).backward()
        norm = clip_grad_norm_(model.parameters(), config.gradient_clip)
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate_at(step)
        optimizer.step()
        optimizer.zero_grad()
        expected = {
            "loss": loss.item(),
            "grad_norm": norm.item(),
            "balance": balance.item() / 2,
            "busiest": max((m.chosen.sum(0) / m.chosen.sum() * 4).max().item() for m in mixtures),
        }
        for key, value in expected.items():
            assert metrics(single_process / "plain", key)[step + 1] == pytest.approx(value, abs=EQUAL), (step, key)
    assert largest_gap(checkpoint(single_process / "plain", STEPS)["model"], model.state_dict()) < EQUAL
    expected = validation_loss(model, tokens, config)
    assert metrics(single_process / "plain", "val_loss")[STEPS] == pytest.approx(expected, abs=EQUAL)


@pytest.mark.parametrize("title", ["resumed", "resumed after a stop"])
def test_resumed_is_the_uninterrupted_run_to_the_last_bit(runs, title):
    """In float32, with dropout; also after SIGTERM to one rank."""
    assert runs.outcomes[title] == runs.outcomes["whole"] == "0" and runs.outcomes["stopped"] == "75"
    assert sorted(os.listdir(runs.folder / "stopped/checkpoints")) == ["step_000002"]
    assert_same_run(runs.folder / title, runs.folder / "whole", STEPS, LOGGED, after=2)


def test_a_run_resumes_on_another_number_of_ranks(runs, single_process, tmp_path):
    assert runs.outcomes["from one process"] == "0"
    assert gap(runs.folder / "from one", single_process / "plain") < EQUAL
    train_one(tmp_path / "run", "--resume", runs.folder / "replicas/checkpoints/step_000002")
    assert gap(tmp_path / "run", single_process / "plain") < EQUAL


def test_half_precision_has_nearly_the_losses_of_float64(runs, single_process):
    plain = metrics(single_process / "plain")
    assert runs.outcomes["bfloat16"] == "0"
    assert metrics(runs.folder / "bfloat16") == pytest.approx({step: plain[step] for step in (1, 2)}, rel=5e-4)


def test_numbers_of_experts_and_ranks_that_do_not_divide_are_refused(runs):
    for refusal, ep, experts in (("ep 3", 3, 4), ("experts 7", runs.nproc, 7)):
        assert runs.outcomes[refusal] == (
            f"InputError: --ep {ep} must divide the number of processes, {runs.nproc}, and "
            f"--experts {experts}: each rank holds as many whole experts"
        )


def test_parameters_are_counted():
    model_config = MiniGPTConfig(61, 8, 3, 2, 12)
    model = MixtureGPT(model_config, 5, 2)
    of_experts = sum(p.numel() for mixture in model.mixtures for p in mixture.experts.parameters())
    others = sum(parameter.numel() for parameter in model.parameters()) - of_experts
    assert mixture_parameter_count(model_config, 5) == (of_experts, others)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ("--tokens-per-update 100", "is not a multiple of 1 rank(s) x 4 windows x 16 tokens = 64; nearest that are: "),
        ("--experts 100000000", "GiB of memory, each of 1 here has"),
        ("--data nothing.txt", 'no corpus "nothing.txt"'),
        ("--resume {checkpoint} --experts 8", "it has experts 4, this run has 8"),
        ("--resume {checkpoint} --experts-per-token 1", "it has experts_per_token 2, this run has 1"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, single_process, wrong, message):
    with pytest.raises(InputError) as refused:
        train_one(tmp_path / "run", *wrong.format(checkpoint=single_process / "plain/checkpoints/step_000002").split())
    assert message in str(refused.value) and not list(tmp_path.rglob("metrics.jsonl"))
