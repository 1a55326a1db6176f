"""DiLoCo, compared with DDP where the two are the same, and with one process that simulates all workers elsewhere.

In float64, where a gap below EQUAL is rounding. Each comparison also runs on a job with a mistake, whose gap is far
larger.
"""

import json
import os

import pytest
import torch
from torch.nn.utils import clip_grad_norm_
from trainer_runs import plain_adamw, run_jobs, validation_loss
from training_runs import (
    RECORDED_LOG,
    assert_same_run,
    checkpoint,
    in_this_process,
    largest_gap,
    merged,
    metrics,
    train_here,
)

from ddp_course import diloco_ddp
from ddp_course.base.errors import InputError
from ddp_course.checkpoint import checkpoint as checkpoints
from ddp_course.data.token_file import open_tokens, prepare
from ddp_course.data.windows import micro_batches
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig
from ddp_course.post_training.pretrained import load_pretrained
from ddp_course.training.command_line import parse

STEPS, EQUAL = 8, 1e-10
FLAGS = (
    "--data",
    RECORDED_LOG,
    *"--precision float64 --layers 1 --heads 2 --width 16 --context 16 --tokens-per-update 256".split(),
    *"--micro-batch-size 2 --validation-windows 11 --validate-every 4 --checkpoint-every 4".split(),
    *"--keep-checkpoints 0".split(),
    "--steps",
    STEPS,
)
SGD = ("--gradient-clip", 0, "--learning-rate", 0.3)
LIKE_DDP = (*SGD, "--inner", "sgd", "--outer-lr", 1, "--outer-momentum", 0)
PACKED = ("--pack", "--validation-windows", 1, "--micro-batch-size", 4)
# Ten steps, so that the last outer step comes early, and a limit that clips every gradient.
SELDOM = ("--sync-every", 4, "--steps", 10, "--gradient-clip", 0.5, "--outer-lr", 0.7, "--outer-momentum", 0.9)
RESUMED = (
    *"--precision float32 --dropout 0.1 --sync-every 2 --outer-momentum 0.9 --check-every 2".split(),
    *"--checkpoint-every 1".split(),
)
BROKEN = "wrong sign", "no message", "weights are not handed out"


def flags(run_dir, *more):
    return merged("--preset", "tiny", "--run-dir", run_dir, *FLAGS, *more)


def train_one(run_dir, *more):
    return in_this_process(diloco_ddp.train, parse(diloco_ddp.PRESETS, flags(run_dir, *more)))


def jobs_of(folder, one_worker):
    """{name: job} of the runs to compare, all for one launch."""

    def job(name, *more, script="diloco", **further):
        sample = ("--sample-tokens", 0) if script == "minigpt" else ()
        return {"script": script, "flags": flags(folder / name, *sample, *more), **further}

    def resume(name, step):
        return "--resume", folder / name / f"checkpoints/step_{step:06d}"

    ddp = {"script": "minigpt", "fault": "plain SGD"}
    jobs = {
        "DDP": job("DDP", *SGD, **ddp),
        "packed DDP": job("packed DDP", *SGD, *PACKED, **ddp),
        "every step": job("every step", *LIKE_DDP, "--sync-every", 1),
        "packed": job("packed", *LIKE_DDP, *PACKED, "--sync-every", 1),
        "every 4": job("every 4", *LIKE_DDP, "--sync-every", 4),
        "seldom": job("seldom", *SELDOM),
        "whole": job("whole", *RESUMED),
        "stopped": job("stopped", *RESUMED, "--steps", 9, fault="stopped"),
        "resumed after a stop": job("resumed after a stop", *RESUMED, *resume("stopped", 2)),
        "by minigpt_ddp": job("by minigpt_ddp", "--steps", 10, *resume("seldom", 8), script="minigpt"),
        "after minigpt_ddp": job("after minigpt_ddp", "--steps", 12, *resume("by minigpt_ddp", 10)),
        "averages of another optimizer": job("other", *LIKE_DDP, *resume("seldom", 4)),
        "of one worker": job("of one worker", "--resume", one_worker, "--steps", STEPS + 2),
        "SGD's, by minigpt_ddp": job("AdamW of SGD", "--steps", 10, *resume("every 4", 4), script="minigpt"),
    }
    for step in (2, 6):
        title = f"resumed after {step}"
        copy = [str(folder / "whole"), step, str(folder / title)]
        jobs[title] = job(title, *RESUMED, "--resume", "auto", copy=copy)
    for fault in ("no outer momentum saved", "averages of rank 0 alone saved"):
        jobs[fault] = job(fault, *RESUMED, "--steps", 4, fault=fault)
        jobs[f"{fault}: resumed"] = job(fault, *RESUMED, "--resume", "auto")
    return jobs | {fault: job(fault, *SELDOM, fault=fault) for fault in BROKEN}


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("one")
    train_one(run_dir)
    return run_dir / "checkpoints" / f"step_{STEPS:06d}"


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def runs(request, tmp_path_factory, one_worker):
    folder = tmp_path_factory.mktemp(f"ranks_{request.param}")
    return run_jobs(folder, jobs_of(folder, one_worker), request.param)


def gap(ours, theirs, step=STEPS):
    """The largest distance of a weight, or of a logged loss where both have one."""
    distances = [largest_gap(checkpoint(ours, step)["model"], checkpoint(theirs, step)["model"])]
    for key in ("loss", "val_loss"):
        values, reference = metrics(ours, key), metrics(theirs, key)
        distances += [abs(values[step] - reference[step]) for step in values.keys() & reference.keys()]
    return max(distances)


def test_workers_with_an_outer_step_after_every_step_are_ddp(runs):
    """Plain SGD inside, an outer rate of 1 without momentum, and no clipping: DDP clips the mean gradient."""
    assert {runs.outcomes[name] for name in ("every step", "packed", "DDP", "packed DDP")} == {"0"}
    assert metrics(runs.folder / "every step").keys() == metrics(runs.folder / "DDP").keys() == set(range(1, STEPS + 1))
    assert gap(runs.folder / "every step", runs.folder / "DDP") < EQUAL
    assert gap(runs.folder / "packed", runs.folder / "packed DDP") < EQUAL
    assert gap(runs.folder / "every 4", runs.folder / "DDP") > 1e3 * EQUAL


def test_bytes_are_those_of_ddp_over_the_steps_between_outer_steps(runs):
    weights = checkpoint(runs.folder / "DDP", STEPS)["model"]
    size = 8 * sum(tensor.numel() for name, tensor in weights.items() if name != "output.weight")
    large = {
        name: sum(nbytes for nbytes in runs.sent[name] if nbytes > 64) for name in ("DDP", "every step", "every 4")
    }
    assert large["DDP"] == (STEPS + 1) * size  # the first is of a backward pass before the first step
    assert large["every step"] == STEPS * size and large["every 4"] == STEPS // 4 * size
    # Each outer step sends loss, norm, whether to stop and seconds; each validation two; of each checkpoint whether the
    # weights are finite.
    small = sorted(size for size in runs.sent["every 4"] if size <= 64)
    assert small == [8] * 2 + [16] * 2 + [32] * (STEPS // 4)


def simulated(more, workers):
    """DiLoCo written out, in one process that computes for all workers in turn.

    Returns {outer step: weights}, {outer step: mean loss since the last one} and the validation loss.
    """
    config = parse(diloco_ddp.PRESETS, flags("nowhere", *more))
    tokens = open_tokens(prepare(config.data, config.tokenizer, config.vocab_size))
    model_config = MiniGPTConfig(256, config.context, config.layers, config.heads, config.width)
    models = []
    for _ in range(workers):
        torch.manual_seed(config.seed)
        models.append(MiniGPT(model_config).double())
    optimizers = [plain_adamw(model) for model in models]
    common = [parameter.detach().clone() for parameter in models[0].parameters()]
    momenta = [torch.zeros_like(tensor) for tensor in common]
    history, losses, round_losses = {}, {}, []
    for step in range(config.steps):
        for worker, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            count = config.tokens_per_update // (config.micro_batch_size * config.context * workers)
            sizes = {"context": config.context, "micro_batch_size": config.micro_batch_size, "world_size": workers}
            for inputs, targets in micro_batches(
                tokens.train, seed=config.seed, step=step, rank=worker, gradient_accumulation_steps=count, **sizes
            ):
                loss = model(inputs, targets)
                (loss * workers / config.tokens_per_update).backward()
                round_losses.append(loss.item())
            clip_grad_norm_(model.parameters(), config.gradient_clip)
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate_at(step)
            optimizer.step()
            optimizer.zero_grad()
        if (step + 1) % config.sync_every == 0 or step + 1 == config.steps:
            for number, locals_ in enumerate(zip(*(model.parameters() for model in models), strict=True)):
                gradient = sum(common[number] - local.detach() for local in locals_) / workers
                momenta[number] = config.outer_momentum * momenta[number] + gradient
                common[number] = common[number] - config.outer_lr * (gradient + config.outer_momentum * momenta[number])
                for local in locals_:
                    local.data.copy_(common[number])
            steps = step + 1 - max(history, default=0)
            losses[step + 1] = sum(round_losses) / config.tokens_per_update / steps
            history[step + 1], round_losses = {name: t.clone() for name, t in models[0].state_dict().items()}, []
    return history, losses, validation_loss(models[0], tokens, config)


def test_workers_equal_one_process_that_computes_for_all(runs):
    """AdamW and clipping for each worker, Nesterov outside, and a last outer step that comes early."""
    history, losses, validation = simulated(SELDOM, runs.nproc)
    assert runs.outcomes["seldom"] == "0" and list(history) == [4, 8, 10]
    for step, weights in history.items():
        assert largest_gap(checkpoint(runs.folder / "seldom", step)["model"], weights) < EQUAL
    assert metrics(runs.folder / "seldom") == pytest.approx(losses, abs=EQUAL)
    assert metrics(runs.folder / "seldom", "val_loss")[10] == pytest.approx(validation, abs=EQUAL)
    assert sorted(metrics(runs.folder / "seldom", "val_loss")) == [4, 8, 10]
    for fault in BROKEN:
        if runs.outcomes[fault] == "0":
            assert largest_gap(checkpoint(runs.folder / fault, 10)["model"], history[10]) > 1e3 * EQUAL
        else:
            assert runs.outcomes[fault].startswith("ReplicasDiffer: replicas differ")
    assert runs.outcomes["wrong sign"] == "0", "the replicas agree: only the comparison shows this mistake"


@pytest.mark.parametrize(
    ("title", "after"), [("resumed after 2", 2), ("resumed after 6", 6), ("resumed after a stop", 2)]
)
def test_resumed_is_the_uninterrupted_run_to_the_last_bit(runs, title, after):
    """Weights, averages of every worker, outer momentum, dropout masks, in float32; also after SIGTERM to one rank."""
    assert runs.outcomes[title] == runs.outcomes["whole"] == "0"
    assert_same_run(runs.folder / title, runs.folder / "whole", STEPS, ("loss", "val_loss"), after)
    assert checkpoint(runs.folder / title, STEPS)["optimizer"]["outer_momentum"].any()


@pytest.mark.parametrize("fault", ["no outer momentum saved", "averages of rank 0 alone saved"])
def test_an_incomplete_checkpoint_changes_the_resumed_run(runs, fault):
    assert runs.outcomes[f"{fault}: resumed"] == "0"
    assert gap(runs.folder / fault, runs.folder / "whole") > 1e-5


def test_sigterm_to_one_rank_stops_all_at_the_next_outer_step(runs):
    assert runs.outcomes["stopped"] == "75"
    assert sorted(os.listdir(runs.folder / "stopped/checkpoints")) == ["step_000002"]


def test_minigpt_ddp_and_diloco_ddp_resume_from_each_other(runs):
    assert runs.outcomes["by minigpt_ddp"] == runs.outcomes["after minigpt_ddp"] == "0"
    assert sorted(metrics(runs.folder / "by minigpt_ddp")) == [9, 10]
    assert checkpoint(runs.folder / "after minigpt_ddp", 12)["optimizer"]["outer_momentum"].any()
    assert runs.outcomes["averages of another optimizer"].startswith(
        "InputError: cannot resume: the checkpoint's workers used AdamW, --inner has chosen SGD"
    )
    refused = runs.outcomes["SGD's, by minigpt_ddp"]
    assert refused.startswith("InputError: cannot resume from ") and "not those of this script" in refused
    assert load_pretrained(runs.folder / "seldom").source == runs.folder / "seldom/checkpoints/step_000010"


def test_one_worker_is_plain_training(tmp_path):
    """At any --sync-every: AdamW, clipping and dropout as in minigpt_ddp.py."""
    more = ("--dropout", 0.1, "--gradient-clip", 0.5, "--activation-checkpointing")
    train_here(tmp_path / "plain", *FLAGS, *more)
    for every in (1, 3, 100):
        run_dir = tmp_path / f"every_{every}"
        printed = train_one(run_dir, *more, "--sync-every", every, "--outer-lr", 1, "--outer-momentum", 0)
        assert f"1 worker(s), an outer step every {every} steps" in printed
        ours, theirs = checkpoint(run_dir, STEPS), checkpoint(tmp_path / "plain", STEPS)
        assert largest_gap(ours["model"], theirs["model"]) < EQUAL
        for number, averages in theirs["optimizer"]["state"].items():
            assert largest_gap(ours["optimizer"]["state"][number], averages) < EQUAL
        by_step, by_round = metrics(tmp_path / "plain"), metrics(run_dir)
        assert max(by_round) == STEPS and len(by_round) == -(-STEPS // every)
        previous = 0
        for step, loss in by_round.items():
            mean = sum(by_step[n] for n in range(previous + 1, step + 1)) / (step - previous)
            assert loss == pytest.approx(mean, abs=EQUAL)
            previous = step


def test_checkpoints_and_validations_wait_for_the_next_outer_step(tmp_path):
    train_one(tmp_path, "--sync-every", 3, "--checkpoint-every", 4, "--validate-every", 7, "--log-every", 5)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step_000006", "step_000008"]
    assert sorted(metrics(tmp_path, "val_loss")) == [8] and sorted(metrics(tmp_path)) == [6, 8]


@pytest.mark.parametrize(
    "wrong, message",
    [
        ("--tokens-per-update 100", "is not a multiple of 1 rank(s) x 2 windows x 16 tokens = 32; nearest that are: "),
        ("--width 1600000 --heads 1", "GiB of memory, each of 1 here has"),
        ("--data nothing.txt", 'no corpus "nothing.txt"'),
        ("--resume {checkpoint} --width 32", "it has width 16, this run has 32"),
        ("--resume {checkpoint} --seed 2", "it has seed 1, this run has 2"),
        ("--resume nothing", "there is no such checkpoint folder"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, one_worker, wrong, message):
    with pytest.raises(InputError) as refused:
        train_one(tmp_path / "run", *wrong.format(checkpoint=one_worker).split())
    assert message in str(refused.value) and not list(tmp_path.rglob("metrics.jsonl"))


def test_a_checkpoint_of_another_number_of_workers_is_refused(runs):
    assert runs.outcomes["of one worker"] == (
        "InputError: cannot resume: the checkpoint is of 1 worker(s), "
        f"this run has {runs.nproc}; each has averages of its own"
    )
    assert not (runs.folder / "of one worker/metrics.jsonl").exists()


def test_a_checkpoint_whose_momentum_has_another_size_is_refused(tmp_path, one_worker):
    state = checkpoints.load(one_worker)
    state["optimizer"]["outer_momentum"] = torch.zeros(3)
    odd = checkpoints.save(tmp_path / "odd", STEPS, state)
    with pytest.raises(InputError, match="its contents are not those of this script"):
        train_one(tmp_path / "run", "--resume", odd, "--steps", STEPS + 1)


def test_config_json_holds_script_and_settings(one_worker):
    settings = json.loads((one_worker.parent.parent / "config.json").read_text())
    assert settings["script"] == "diloco_ddp" and settings["sync_every"] == 5
