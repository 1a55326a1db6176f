"""GRPO on a policy of another library: Hugging Face's own loader on a model made here, nanochat's on a stand-in."""

import json
import re

import pytest
import torch
from huggingface_folder import make_model, make_tokenizer
from reward_files import make_backbone
from test_backbones import ARCHITECTURES, GPT2, nanochat, save  # noqa: F401  nanochat is a fixture
from trainer_runs import run_jobs
from training_runs import assert_same_run, checkpoint, in_this_process, largest_gap, merged, metrics

from ddp_course import grpo_ddp
from ddp_course.base.errors import InputError
from ddp_course.post_training.policies import ForeignConfig, ForeignModel, load_policy, prepare_policy
from ddp_course.post_training.rewards import Parses
from ddp_course.post_training.rollout import RolloutModels
from ddp_course.training.command_line import parse

BODY = "\n    c = a\n    return b\n"


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    for letter in "pq":
        (folder / f"{letter}.py").write_text("\n\n".join(f"def {letter}{n}(a, b):{BODY}" for n in range(90)))
    return folder


@pytest.fixture(scope="module")
def folder(transformers, tmp_path_factory):
    """A GPT-2 of 20,000 weights that has learnt to write the body of a function, though not always."""
    path = make_model(tmp_path_factory.mktemp("gpt2"))
    start = load_policy(f"hf:{path}")
    texts = [[*start.begin, *start.tokenizer.encode(f"def {'pq'[n % 2]}{n}(a, b):{BODY}")][:32] for n in range(64)]
    longest = max(map(len, texts))
    tokens = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    optimizer = torch.optim.AdamW(start.model.parameters(), lr=1e-2)
    for _ in range(60):
        logits = start.model(tokens[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    start.model.model.save_pretrained(path)
    return path


def flags(folder, code, run_dir, *more):
    sizes = "--preset tiny --group-size 8 --new-tokens 16 --micro-batch-size 5 --keep-checkpoints 0".split()
    return merged(*sizes, "--pretrained", f"hf:{folder}", "--data", code, "--run-dir", run_dir, *more)


def train(*words):
    """On one process, in this one; returns what it printed."""
    return in_this_process(grpo_ddp.train, parse(grpo_ddp.PRESETS, flags(*words)))


@pytest.fixture(scope="module")
def runs(folder, code, tmp_path_factory):
    """The folder of a run of two ranks, "whole", of the same run resumed in mid-run, and of what the ranks printed."""
    top = tmp_path_factory.mktemp("runs")
    jobs = {
        "whole": {"flags": flags(folder, code, top / "whole"), "printed": top},
        "resumed": {
            "flags": flags(folder, code, top / "resumed", "--resume", "auto"),
            "copy": [top / "whole", 2, top / "resumed"],
        },
    }
    runs = run_jobs(top, {title: {"script": "grpo"} | job for title, job in jobs.items()}, 2)
    assert runs.outcomes == {"whole": "0", "resumed": "0"}
    return top


def test_it_leaves_the_reference_for_the_rewards_of_what_it_writes(runs):
    rewards, kl = (metrics(runs / "whole", key) for key in ("reward", "kl"))
    assert any(0 < reward < 1 for reward in rewards.values()), "a group with nothing to compare teaches nothing"
    assert kl[1] == pytest.approx(0, abs=1e-6) and kl[4] > 0
    assert re.search("hf:.*huggingface_step_000004", (runs / "printed_0").read_text())
    assert not (runs / "printed_1").read_text(), "only rank 0 prints"
    samples = (runs / "whole/samples.txt").read_text()
    assert "<|end|>" not in samples, "the token before a prompt is no part of the text"


def test_two_ranks_resume_bit_equal(runs):
    keys = "loss", "reward", "kl", "beta", "entropy", "val_reward"
    assert_same_run(runs / "resumed", runs / "whole", 4, keys)


def test_the_policy_is_written_as_a_folder_that_loads_again(transformers, runs, folder, code, tmp_path):
    """By transformers, and by --pretrained, for one process that trains it further."""
    written = runs / "whole/huggingface_step_000004"
    saved = {name.removeprefix("model."): value for name, value in checkpoint(runs / "whole", 4)["model"].items()}
    own = transformers.AutoModelForCausalLM.from_pretrained(written)
    assert largest_gap(own.state_dict(), saved) == 0.0
    original = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert largest_gap(own.state_dict(), original.state_dict()) > 0
    printed = train(written, code, tmp_path / "run", "--steps", 1)
    assert "huggingface_step_000001" in printed and (tmp_path / "run" / "huggingface_step_000001").is_dir()
    with pytest.raises(InputError, match="it has pretrained weights .*, this run has"):
        train(written, code, runs / "whole", "--steps", 5, "--resume", "auto")


def rollout_models(start, new_tokens):
    """The initial policy, also as its reference."""
    sizes = {"new_tokens": new_tokens, "micro_batch_size": 2}
    options = sizes | {"temperature": 1.0, "precision": "float32", "begin": start.begin}
    return RolloutModels(start.model, start.model, Parses(1), start.tokenizer, **options)


@pytest.mark.parametrize("what", ARCHITECTURES)
def test_an_architecture_can_be_a_policy(transformers, folder, tmp_path, what):
    """It writes, every parameter learns, and padding changes no probability of what stands before it."""
    kind, sizes = ARCHITECTURES[what]
    name = save(transformers, folder, tmp_path, getattr(transformers, kind)(**sizes))
    (tmp_path / "tokenizer_config.json").write_bytes((folder / "tokenizer_config.json").read_bytes())
    start = load_policy(name)
    models = rollout_models(start, new_tokens=4)
    drawn = models.sample(models.policy, [models.encode(text) for text in ("def f(a):", "x", "for item in")], seed=1)
    assert len(drawn) == 3 and all(1 <= len(completion) <= 4 for completion in drawn)
    text = torch.tensor([[*models.encode("x"), 5, 7, 9]])
    padded = torch.nn.functional.pad(text, (0, 6))
    expected, _ = models.log_probabilities(models.policy, text)
    observed, _ = models.log_probabilities(models.policy, padded)
    assert (observed[:, : expected.shape[1]] - expected).abs().max() < 1e-5


def test_a_policy_of_nanochat(nanochat):  # noqa: F811
    start = load_policy("nanochat:sft/d20")
    assert nanochat[0][0] == "sft" and start.begin == (49,) and start.tokenizer.end_of_text == 49
    models = rollout_models(start, new_tokens=5)
    prompts = [models.encode(prompt) for prompt in ("def f():", "x", "")]
    assert [len(prompt) for prompt in prompts] == [9, 2, 1] and all(prompt[0] == 49 for prompt in prompts)
    drawn = models.sample(models.policy, prompts, seed=1)
    assert drawn == models.sample(models.policy, prompts, seed=1) != models.sample(models.policy, prompts, seed=2)
    assert all(1 <= len(completion) <= 5 and 49 not in completion[:-1] for completion in drawn)
    tokens = torch.tensor([[49, 1, 2, 3]])
    log_probs, _ = models.log_probabilities(models.policy, tokens)
    with torch.no_grad():
        own = start.model.model(tokens).log_softmax(-1)
    torch.testing.assert_close(log_probs[0], own[0, range(3), [1, 2, 3]])
    assert all(parameter.requires_grad for parameter in start.model.parameters()) and not start.model.training
    json.dumps(start.tokenizer.state())


class TwoHeads(torch.nn.Module):
    """A model with a head that a text does not use."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head, self.other = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50), torch.nn.Linear(8, 9)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def test_what_cannot_be_trained_is_refused(transformers, tmp_path, code):
    with pytest.raises(InputError, match="cannot train nanochat:x: 2 of its parameters .* first is model.other.weight"):
        ForeignModel(TwoHeads(), ForeignConfig("nanochat:x", 64)).assert_trainable()
    make_tokenizer(tmp_path)
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|nowhere|>"}')
    with pytest.raises(InputError, match=r"has no token that ends a text: it does not know <\|nowhere\|>"):
        load_policy(f"hf:{tmp_path}")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    with pytest.raises(InputError, match="--new-tokens 31 leaves no room for a prompt in the model's context of 32"):
        train(tmp_path, code, tmp_path / "run", "--new-tokens", 31)
    with pytest.raises(InputError, match="cannot load the backbone hf:.* it has no tokenizer.json"):
        train(code, code, tmp_path / "other")


@pytest.mark.parametrize("kind", ["minigpt", "hf", "nanochat"])
def test_a_run_directory_may_be_called_as_a_kind_of_model_is(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    make_backbone(tmp_path / kind)
    assert load_policy(prepare_policy(kind)).begin == ()
