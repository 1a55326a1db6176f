"""Fine-tuning on several ranks equals fine-tuning on one process: losses, norms, accuracies, trained weights.

In float64, where a gap below EQUAL is rounding. A job with a mistake has a gap that is far larger.
"""

import json
import os
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from finetune_files import make_examples, make_opt
from trainer_runs import run_jobs
from training_runs import assert_same_run, checkpoint, in_this_process, largest_gap, merged, metrics

from ddp_course import finetune_ddp
from ddp_course.base.errors import InputError
from ddp_course.data.pairs import Answer, Pair, read_pairs
from ddp_course.distributed import process_group
from ddp_course.post_training.examples import batch_of, encode, examples_of_step
from ddp_course.post_training.fine_tuning import IGNORED, answer_loss
from ddp_course.post_training.lora import LoRA, add_lora
from ddp_course.post_training.policies import ForeignModel, load_policy
from ddp_course.training.command_line import parse

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
STEPS, EQUAL = 4, 1e-10
FLAGS = (
    "--preset tiny --precision float64 --examples-per-update 13 --micro-batch-size 3 --gradient-clip 0.5 "
    "--validate-every 2 --checkpoint-every 2 --keep-checkpoints 0 --lora-rank 2 --lora-layers q_proj,v_proj "
    f"--steps {STEPS}"
).split()
LOGGED = "loss", "val_loss", "grad_norm", "val_accuracy"
VARIANTS = {
    "sft": (),
    "sft, packed": ("--pack", True),
    "sft, all weights": ("--lora-rank", 0, "--learning-rate", 1e-3),
    "dpo": ("--objective", "dpo"),
    "dpo, all weights": ("--objective", "dpo", "--lora-rank", 0, "--learning-rate", 1e-3),
}


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """The model's folder and a file of examples for each objective."""
    folder = tmp_path_factory.mktemp("material")
    return SimpleNamespace(model=make_opt(folder / "opt"), examples=make_examples(folder))


def flags(material, run_dir, *more):
    data = material.examples["dpo" if "dpo" in more else "sft"]
    return merged("--model", material.model, "--data", data, "--run-dir", run_dir, *FLAGS, *more)


def training_answers(material):
    folder = finetune_ddp.prepare_data(str(material.examples["sft"]), Answer)
    return read_pairs(folder / "train.jsonl", Answer)


def train_one(material, run_dir, *more):
    return in_this_process(finetune_ddp.train, parse(finetune_ddp.PRESETS, flags(material, run_dir, *more)))


@pytest.fixture(scope="module")
def one_process(tmp_path_factory, material):
    """The folder of a run of each variant on one process."""
    folder = tmp_path_factory.mktemp("one_process")
    for variant, more in VARIANTS.items():
        train_one(material, folder / variant, *more, "--merge", True)
    return folder


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.weekly)], ids=["2 ranks", "3 ranks"])
def runs(request, tmp_path_factory, material, one_process):
    folder = tmp_path_factory.mktemp(f"ranks_{request.param}")

    def job(name, *more, **further):
        return {"script": "finetune", "flags": flags(material, folder / name, *more), **further}

    whole, single = ("--precision", "float32"), one_process / "sft/checkpoints/step_000002"
    jobs = {variant: job(variant, *more) for variant, more in VARIANTS.items()} | {
        "whole": job("whole", *whole),
        "resumed": job("resumed", *whole, "--resume", "auto", copy=(str(folder / "whole"), 2, str(folder / "resumed"))),
        "stopped": job("stopped", *whole, fault="stopped fine-tuning"),
        "cut": job("cut", *whole, "--micro-batch-size", 1, "--checkpoint-every", 0, fault="stopped within a step"),
        "cut, resumed": job("cut", *whole, "--micro-batch-size", 1, "--resume", "auto"),
        "not cut": job("not cut", *whole, "--micro-batch-size", 1),
        "resumed after a stop": job(
            "resumed after a stop", *whole, "--resume", folder / "stopped/checkpoints/step_000002"
        ),
        "from one process": job("from one process", "--resume", single),
        "mean of the ranks' means": job("mean of the ranks' means", fault="own answer tokens"),
        "fewer examples than ranks": job("fewer", "--examples-per-update", 1),
    }
    return run_jobs(folder, jobs, request.param)


def trained_weights(run_dir):
    state = checkpoint(run_dir, STEPS)
    return state["adapters"] if "adapters" in state else state["model"]


def gap(ours, theirs):
    """The largest distance of a logged number or of a trained weight."""
    distances = [largest_gap(trained_weights(ours), trained_weights(theirs))]
    for key in LOGGED:
        own, other = metrics(ours, key), metrics(theirs, key)
        assert own.keys() == {step for step in other if step >= min(own, default=0)}  # a resumed run starts later
        distances += [abs(value - other[step]) for step, value in own.items()]
    return max(distances)


@pytest.mark.parametrize("variant", VARIANTS)
def test_ranks_are_one_process(runs, one_process, variant):
    """13 examples per step, so that ranks differ in their number of examples and of micro-batches."""
    assert runs.outcomes[variant] == "0"
    assert gap(runs.folder / variant, one_process / variant) < EQUAL
    assert ("val_accuracy" in (runs.folder / variant / "metrics.jsonl").read_text()) == ("dpo" in variant)


def test_packed_examples_have_the_loss_of_padded_ones_in_fewer_positions(material, one_process):
    assert gap(one_process / "sft, packed", one_process / "sft") < EQUAL
    start = load_policy(f"hf:{material.model}")
    examples = [encode(start, answer, 64) for answer in training_answers(material)][:8]
    assert batch_of(examples, 64)["input_ids"].numel() < batch_of(examples)["input_ids"].numel()


@pytest.mark.parametrize("missing", ["attention_mask", "position_ids"])
def test_a_model_that_mixes_packed_rows_is_refused(material, tmp_path, monkeypatch, missing):
    forward = ForeignModel.forward
    monkeypatch.setattr(
        ForeignModel, "forward", lambda self, tokens, **masks: forward(self, tokens, **masks | {missing: None})
    )
    with pytest.raises(InputError, match="--pack: .* packed window"):
        train_one(material, tmp_path / "run", "--pack", True)


def test_a_mean_over_the_ranks_own_tokens_is_another_objective(runs, one_process):
    assert runs.outcomes["mean of the ranks' means"] == "0"
    assert gap(runs.folder / "mean of the ranks' means", one_process / "sft") > 1e3 * EQUAL


def test_frozen_weights_are_not_sent(runs):
    """The largest all-reduce of a step has the gradients of the trained weights, in 8 bytes each."""
    for variant in ("sft", "sft, all weights"):
        weights = trained_weights(runs.folder / variant).values()
        numels = {tensor.data_ptr(): tensor.numel() for tensor in weights}  # tied weights count once
        assert max(runs.sent[variant]) == 8 * sum(numels.values())


def test_sigterm_within_a_step_abandons_it_and_the_resumed_run_repeats_it(runs):
    assert [runs.outcomes[title] for title in ("cut", "cut, resumed", "not cut")] == ["75", "0", "0"]
    assert gap(runs.folder / "cut", runs.folder / "not cut") == 0


@pytest.mark.parametrize("title", ["resumed", "resumed after a stop"])
def test_resumed_is_the_uninterrupted_run_to_the_last_bit(runs, title):
    """In float32; also after SIGTERM to one rank."""
    assert runs.outcomes[title] == runs.outcomes["whole"] == "0" and runs.outcomes["stopped"] == "75"
    assert os.listdir(runs.folder / "stopped/checkpoints") == ["step_000002"]
    assert_same_run(runs.folder / title, runs.folder / "whole", STEPS, LOGGED[:3], 2, "adapters")


def test_a_run_resumes_on_another_number_of_ranks(runs, one_process, material, tmp_path):
    assert runs.outcomes["from one process"] == "0"
    assert gap(runs.folder / "from one process", one_process / "sft") < EQUAL
    train_one(material, tmp_path / "run", "--resume", runs.folder / "sft/checkpoints/step_000002")
    assert gap(tmp_path / "run", one_process / "sft") < EQUAL


def test_a_rank_without_an_example_is_refused(runs):
    expected = f"InputError: --examples-per-update 1 leaves ranks without work: there are {runs.nproc}"
    assert runs.outcomes["fewer examples than ranks"] == expected


def test_one_process_is_peft_on_the_whole_batch(material, one_process):
    """The first run again with peft's adapters and torch alone, from the same initial adapters."""
    config = parse(finetune_ddp.PRESETS, flags(material, "nowhere"))
    start = load_policy(f"hf:{material.model}")
    examples = [encode(start, answer, 64) for answer in training_answers(material)]
    process_group.seed_shared(config.seed)
    ours = [
        layer
        for layer in add_lora(start.model.double(), config.lora_layers.split(","), 2, 16).modules()
        if isinstance(layer, LoRA)
    ]
    base = transformers.AutoModelForCausalLM.from_pretrained(material.model, dtype=torch.float64)
    settings = {"lora_alpha": 16, "target_modules": config.lora_layers.split(","), "task_type": "CAUSAL_LM"}
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, **settings)).double().eval()
    theirs = [layer for layer in model.modules() if hasattr(layer, "lora_A")]
    with torch.no_grad():
        for layer, own in zip(theirs, ours, strict=True):
            layer.lora_A["default"].weight.copy_(own.A)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.95), weight_decay=0)
    for step in range(STEPS):
        batch = batch_of([examples[n] for n in examples_of_step(config.seed, step, 13, len(examples))])
        logits = model(input_ids=batch["input_ids"]).logits[:, :-1].flatten(0, 1)
        loss = F.cross_entropy(logits, batch["labels"][:, 1:].flatten())  # the mean over what is not IGNORED
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, config.gradient_clip)
        optimizer.param_groups[0]["lr"] = config.learning_rate_at(step)
        optimizer.step()
        optimizer.zero_grad()
        for key, value in (("loss", loss.item()), ("grad_norm", norm.item())):
            assert metrics(one_process / "sft", key)[step + 1] == pytest.approx(value, abs=EQUAL), (step, key)


def test_the_adapters_are_pefts_and_the_merged_model_is_transformers(material, one_process):
    def logits(model):
        return model.double().eval()(torch.arange(1, 9)[None]).logits

    def read(folder):
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)

    for variant in ("sft", "dpo"):
        adapted = peft.PeftModel.from_pretrained(read(material.model), one_process / variant / "adapters_step_000004")
        whole = read(one_process / variant / "huggingface_step_000004")
        torch.testing.assert_close(logits(adapted), logits(whole), rtol=0, atol=EQUAL)
        assert (logits(whole) - logits(read(material.model))).abs().max() > 1e-3
    assert not (one_process / "sft, all weights/adapters_step_000004").exists()
    assert (one_process / "sft, all weights/huggingface_step_000004/tokenizer.json").exists()


def test_an_epoch_has_each_example_once():
    steps = [examples_of_step(5, step, 4, 10) for step in range(5)]
    drawn = [number for numbers in steps for number in numbers]
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10)) and drawn[:10] != drawn[10:]
    assert examples_of_step(5, 1, 10, 10) == drawn[10:], "the order does not depend on the examples per step"
    assert examples_of_step(6, 0, 10, 10) != drawn[:10]


def test_too_long_a_prompt_loses_its_beginning():
    words = SimpleNamespace(encode=lambda text: [ord(letter) for letter in text], end_of_text=0)
    start = SimpleNamespace(begin=(1,), tokenizer=words)

    def example_of(prompt, answer, max_tokens):
        return encode(start, Answer(prompt, answer), max_tokens)

    a, b, c, x, y = map(ord, "abcxy")
    example = example_of("abc", "xy", 9)
    assert example.rows[0] == {"input_ids": [1, a, b, c, x, y, 0], "labels": [IGNORED] * 4 + [x, y, 0]}
    assert example.target_count == 3
    assert example_of("abc", "xy", 5).rows[0]["input_ids"] == [1, c, x, y, 0]
    assert example_of("abc", "xy", 3).rows[0] == {"input_ids": [1, x, y], "labels": [IGNORED, x, y]}
    pair = encode(start, Pair("a", "x", "yy"), 9)
    assert pair.target_count == 1 and batch_of([pair, pair])["labels"][:, 2].tolist() == [x, x, y, y]
    assert answer_loss(torch.zeros(1, 7, 128), batch_of([example])["labels"])[1] == example.target_count


@pytest.mark.parametrize(
    "wrong, message",
    [
        ("--model=", "--model is missing: give it the folder of a Hugging Face checkpoint"),
        ("--model {tmp}/nothing", "nothing' is no folder; give that of a Hugging Face checkpoint, which"),
        ("--model {tmp}", "it has no tokenizer.json"),
        ("--data=", "--data is missing: give it a JSONL file"),
        ("--data {tmp}/nothing", "nothing' is neither a JSONL file nor a folder with train.jsonl"),
        ("--data {tmp}/odd.jsonl", "odd.jsonl, line 2: 'answer' is missing; there is prompt"),
        ("--data {tmp}/empty.jsonl", "empty.jsonl, line 1: 'answer' is empty; expected the text of a completion"),
        ("--objective dpo --data {tmp}/odd.jsonl", "odd.jsonl, line 1: 'chosen' is missing; there is prompt, answer"),
        (
            "--lora-layers q_proj,up",
            "--lora-layers: no linear layer is named 'up'; those of this model are fc1, fc2, k_proj,",
        ),
        ("--lora-layers lm_head", "no linear layer is named 'lm_head'"),
        ("--objective dpo --pack", "--pack is for --objective sft"),
        ("--resume {single}/sft/checkpoints/step_000002 --lora-rank 3", "it has lora_rank 2, this run has 3"),
        ("--resume {single}/sft/checkpoints/step_000002 --lora-rank 0", "expected a checkpoint with model, optimizer"),
    ],
)
def test_bad_input_is_one_sentence(material, one_process, tmp_path, wrong, message):
    (tmp_path / "odd.jsonl").write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "c"}\n')
    (tmp_path / "empty.jsonl").write_text('{"prompt": "a", "answer": ""}\n')
    with pytest.raises(InputError) as refused:
        train_one(material, tmp_path / "run", *wrong.format(tmp=tmp_path, single=one_process).split())
    assert message in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "run/metrics.jsonl").exists()


def test_the_run_directory_has_settings_and_the_latest_checkpoint(material, one_process):
    run = one_process / "sft"
    settings = json.loads((run / "config.json").read_text())
    assert settings["script"] == "finetune_ddp" and settings["lora_rank"] == 2 and settings["world_size"] == 1
    assert (run / "latest").read_text().strip() == "step_000004"
    assert metrics(run, "epoch")[STEPS] == STEPS * 13 / len(training_answers(material))
