"""Backbones by name: Hugging Face's own loader on a model made here, nanochat's on a stand-in, and real reasons."""

import json
import sys
import types

import pytest
import torch
from reward_runs import make_backbone
from torch import nn

from ddp_course.errors import InputError
from ddp_course.models.reward import RewardHead, feature_count
from ddp_course.post_training.backbones import fingerprint, load_backbone, prepare_backbone
from ddp_course.post_training.reward_model import RewardModel

TEXTS = ["def share(items):\n    return items[0]\n", "for item in items:\n    print(item)\n", "x = (1, 2)\n"] * 3


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers", reason="the backbone hf: needs transformers: pip install transformers")


@pytest.fixture(scope="module")
def folder(transformers, tmp_path_factory):
    """A GPT-2 of a few thousand weights with a tokenizer trained on three lines, saved as any model is."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    path = tmp_path_factory.mktemp("gpt2")
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )
    library.train_from_iterator(TEXTS, trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=library, eos_token="<|end|>").save_pretrained(path)
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=300, n_positions=32, n_embd=16, n_layer=2, n_head=2,
                                     bos_token_id=0, eos_token_id=0)  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(path)
    return path


def test_a_hugging_face_model_is_read_as_it_reads_itself(transformers, folder):
    """States and log-probabilities equal those of the model's own forward pass, without padding and in a batch."""
    backbone = load_backbone(prepare_backbone(f"hf:{folder}"))
    assert backbone.name == f"hf:{folder}" and backbone.model.width == 16 and backbone.model.context == 32
    backbone.model.assert_frozen()
    model = RewardModel(backbone, RewardHead(feature_count(16), 8), max_tokens=32, micro_batch_size=3).double()
    prompts, completions = TEXTS[:3], ["    y = items\n", "x\n", "print(items[0], item)\n"]
    features = model.features(prompts, completions)
    own = transformers.AutoModelForCausalLM.from_pretrained(folder).double().eval()
    for row, prompt, completion in zip(features, prompts, completions, strict=True):
        after = backbone.encode(completion)
        before = [0, *backbone.encode(prompt)][-(32 - len(after)) :]
        with torch.no_grad():
            found = own(torch.tensor([before + after]), output_hidden_states=True)
        likelihood = found.logits[0, len(before) - 1 : -1].log_softmax(-1)[range(len(after)), after]
        mean = found.hidden_states[-1][0, len(before) :].mean(0)
        expected = torch.cat([mean, -likelihood.mean()[None], -likelihood.min()[None]])
        assert (row - expected).abs().max() < 1e-12


def test_a_head_on_a_hugging_face_model_is_trained_and_loaded(folder, tmp_path, monkeypatch):
    from reward_runs import make_pairs

    from ddp_course import reward_ddp
    from ddp_course.parallel.command_line import parse
    from ddp_course.post_training.reward_model import load_reward_model

    monkeypatch.setattr(reward_ddp, "StopRequest", lambda *_: types.SimpleNamespace(asked=lambda: False))
    flags = ["--preset", "tiny", "--backbone", f"hf:{folder}", "--pairs", str(make_pairs(tmp_path / "pairs")),
             "--run-dir", str(tmp_path / "run"), "--max-tokens", "32", "--steps", "2"]  # fmt: skip
    try:
        reward_ddp.train(parse(reward_ddp.PRESETS, flags))
    finally:
        reward_ddp.process_group.stop()
    model = load_reward_model(tmp_path / "run")
    assert model.score(["x = "], ["1\n"]).isfinite().all()
    saved = torch.load(tmp_path / "run/checkpoints/step_000002/state.pt", weights_only=True)["config"]
    assert saved["tokenizer_state"]["tokenizer"]["model"]["vocab"]["<|end|>"] == 0


def test_a_tokenizer_of_another_model_is_refused(transformers, folder, tmp_path):
    size = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    config = transformers.GPT2Config(vocab_size=size - 1, n_positions=32, n_embd=16, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(InputError, match=f"another model's: it has {size} tokens, the model knows {size - 1}"):
        load_backbone(f"hf:{tmp_path}")


@pytest.mark.parametrize("damage", ["no config", "no weights", "a torn config", "no tokenizer"])
def test_the_loaders_own_reason_is_shown(transformers, folder, tmp_path, damage):
    for file in folder.iterdir():
        missing = {"no config": "config.json", "no weights": "model.safetensors", "no tokenizer": "tokenizer.json"}
        if file.name != missing.get(damage):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    if damage == "a torn config":
        (tmp_path / "config.json").write_text('{"model_type": ')
    with pytest.raises(InputError, match=f"cannot load the backbone hf:{tmp_path}: ") as error:
        load_backbone(prepare_backbone(f"hf:{tmp_path}"))
    expected = {"no config": "config.json", "no weights": "model.safetensors", "a torn config": "config.json",
                "no tokenizer": "it has no tokenizer.json"}[damage]  # fmt: skip
    assert expected in str(error.value) and "\n" not in str(error.value)


def test_a_package_that_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=f"the backbone hf:{tmp_path} needs the package: pip install transformers"):
        prepare_backbone(f"hf:{tmp_path}")


class StandIn(nn.Module):
    """What nanochat's model has that a backbone needs: lm_head, config, and logits that are squashed after lm_head."""

    def __init__(self):
        super().__init__()
        self.config = types.SimpleNamespace(n_embd=8, sequence_len=64)
        self.embedding, self.lm_head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)

    def forward(self, tokens):
        return 15 * torch.tanh(self.lm_head(self.embedding(tokens).cumsum(1)) / 15)


@pytest.fixture
def nanochat(monkeypatch):
    """Its loader, with the signature of the real one, and what it was asked for."""
    asked = []

    def load_model(source, *args, **kwargs):
        asked.append((source, args, kwargs))
        if source == "rl":
            raise FileNotFoundError("No checkpoints found in /somewhere/chatrl_checkpoints")
        torch.manual_seed(1)
        tokenizer = types.SimpleNamespace(
            encode=lambda text: [ord(letter) % 50 for letter in text], get_bos_token_id=lambda: 49,
            get_vocab_size=lambda: 50,
        )  # fmt: skip
        return StandIn(), tokenizer, {}

    package = types.ModuleType("nanochat")
    package.checkpoint_manager = types.ModuleType("nanochat.checkpoint_manager")
    package.checkpoint_manager.load_model = load_model
    monkeypatch.setitem(sys.modules, "nanochat", package)
    monkeypatch.setitem(sys.modules, "nanochat.checkpoint_manager", package.checkpoint_manager)
    return asked


def test_nanochats_own_loader_is_asked(nanochat):
    backbone = load_backbone("nanochat:sft/d20/650")
    device = torch.device("cpu")
    assert nanochat == [("sft", (), {"device": device, "phase": "eval", "model_tag": "d20", "step": 650})]
    backbone.model.assert_frozen()
    tokens = torch.tensor([[49, 1, 2, 3]])
    assert (backbone.model.states(tokens) == backbone.model.model.embedding(tokens).cumsum(1)).all()
    model = RewardModel(backbone, RewardHead(feature_count(8), 4), max_tokens=16)
    assert model.score(["a", ""], ["b", "cd"]).isfinite().all()
    with pytest.raises(InputError, match="backbone nanochat:rl: FileNotFoundError: No checkpoints found"):
        load_backbone("nanochat:rl")


def test_a_fingerprint_sees_weights_and_tokenizer_and_no_number_format(tmp_path):
    one = load_backbone(f"minigpt:{make_backbone(tmp_path / 'one')}")
    same = load_backbone(f"minigpt:{make_backbone(tmp_path / 'same')}")
    other = load_backbone(f"minigpt:{make_backbone(tmp_path / 'other', seed=2)}")
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)
    same.model.double()
    assert fingerprint(one) == fingerprint(same)
    same.tokenizer_state["name"] = "another"
    assert fingerprint(one) != fingerprint(same)
    assert json.dumps(one.tokenizer_state)


def test_whatever_a_policy_writes_gets_a_reward(tmp_path):
    """NUL bytes, broken UTF-8 and nothing at all occur in what an untrained policy samples."""
    model = RewardModel(load_backbone(f"minigpt:{make_backbone(tmp_path / 'run')}"), RewardHead(feature_count(16), 8),
                        max_tokens=32)  # fmt: skip
    written = ["a\0b", "\0", b"\xff\xfe(".decode(errors="replace"), ""]
    assert model.score(["def f():"] * len(written), written).isfinite().all()
