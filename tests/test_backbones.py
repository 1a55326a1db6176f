"""Backbones by name: Hugging Face's loader on models made here, a stand-in for nanochat's, and their error texts."""

import json
import shutil
import sys
import types

import pytest
import torch
from huggingface_folder import TEXTS, make_model
from reward_files import make_backbone, make_pairs
from torch import nn
from training_runs import checkpoint as contents
from training_runs import in_this_process

from ddp_course import reward_ddp
from ddp_course.base.errors import InputError
from ddp_course.checkpoint import checkpoint
from ddp_course.models.reward import RewardHead, feature_count
from ddp_course.post_training.backbones import fingerprint, load_backbone, prepare_backbone
from ddp_course.post_training.reward_model import RewardModel, load_reward_model
from ddp_course.training.command_line import parse

pytestmark = pytest.mark.smoke


@pytest.fixture(scope="module")
def folder(transformers, tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("gpt2"))


PROMPTS, COMPLETIONS = TEXTS[:3], ["    y = items\n", "x\n", "print(items[0], item)\n"]


def features_gap(model, own):
    """The largest distance of a feature of a batch from that which transformers' model gives to each text by itself."""
    states, gaps = [], []
    own.get_output_embeddings().register_forward_pre_hook(lambda layer, inputs: states.append(inputs[0]))
    for row, prompt, completion in zip(model.features(PROMPTS, COMPLETIONS), PROMPTS, COMPLETIONS, strict=True):
        tokens, start = model.tokens(prompt, completion)
        with torch.no_grad():
            logits = own(torch.tensor([tokens])).logits[0]
        likelihood = logits[start - 1 : -1].log_softmax(-1)[range(len(tokens) - start), tokens[start:]]
        expected = torch.cat([states.pop()[0, start:].mean(0), -likelihood.mean()[None], -likelihood.min()[None]])
        gaps.append((row - expected).abs().max())
    return torch.stack(gaps).max()  # NaN if one is


def test_features_of_a_hugging_face_model_in_float64(transformers, folder):
    backbone = load_backbone(prepare_backbone(f"hf:{folder}"))
    assert backbone.name == f"hf:{folder}" and backbone.model.width == 16 and backbone.model.context == 32
    backbone.model.assert_frozen()
    model = RewardModel(backbone, RewardHead(feature_count(16), 8), max_tokens=32, micro_batch_size=3).double()
    own = transformers.AutoModelForCausalLM.from_pretrained(folder).double().eval()
    assert features_gap(model, own) < 1e-12
    for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True):
        completed = backbone.encode(completion)
        context = [0, *backbone.encode(prompt)][-(32 - len(completed)) :]
        assert model.tokens(prompt, completion) == (context + completed, len(context))


COMMON = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
ENDS = {"bos_token_id": 0, "eos_token_id": 0}
SIZES = COMMON | ENDS | {"intermediate_size": 32, "max_position_embeddings": 32, "pad_token_id": 0}
GQA = SIZES | {"num_key_value_heads": 1}
HEADS = GQA | {"head_dim": 8}
GPT2 = ENDS | {"vocab_size": 300, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
OPT = COMMON | ENDS | {"ffn_dim": 32, "max_position_embeddings": 32}
ARCHITECTURES = {
    "Llama": ("LlamaConfig", GQA),
    "Mistral, a window of 4": ("MistralConfig", GQA | {"sliding_window": 4}),
    "Mixtral": ("MixtralConfig", GQA | {"num_local_experts": 4}),
    "Qwen 2": ("Qwen2Config", GQA),
    "Qwen 3": ("Qwen3Config", HEADS),
    "Gemma": ("GemmaConfig", HEADS),
    "Gemma 2, logits capped": ("Gemma2Config", HEADS | {"final_logit_softcapping": 0.02, "query_pre_attn_scalar": 8}),
    "Gemma 3, text": ("Gemma3TextConfig", HEADS | {"query_pre_attn_scalar": 8}),
    "Cohere, logits scaled": ("CohereConfig", GQA | {"logit_scale": 0.0625}),
    "Cohere 2, logits scaled": ("Cohere2Config", GQA | {"logit_scale": 0.0625}),
    "Granite, logits divided": ("GraniteConfig", GQA | {"logits_scaling": 8.0, "embedding_multiplier": 3.0}),
    "OPT": ("OPTConfig", OPT | {"word_embed_proj_dim": 16}),
    "OPT-350m, states projected": ("OPTConfig", OPT | {"word_embed_proj_dim": 8, "do_layer_norm_before": False}),
    "GPT-NeoX": ("GPTNeoXConfig", SIZES),
    "GPT-J": ("GPTJConfig", GPT2 | {"rotary_dim": 4}),
    "GPT-BigCode": ("GPTBigCodeConfig", GPT2),
    "Phi": ("PhiConfig", SIZES),
    "Phi 3": ("Phi3Config", SIZES),
    "Falcon": ("FalconConfig", SIZES),
    "BLOOM": ("BloomConfig", {"vocab_size": 300, "hidden_size": 16, "n_layer": 2, "n_head": 2}),
    "MPT": ("MptConfig", {"vocab_size": 300, "d_model": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 32}),
    "StarCoder 2": ("Starcoder2Config", GQA),
    "OLMo 2": ("Olmo2Config", SIZES),
    "StableLM": ("StableLmConfig", GQA),
    "GPT-OSS": ("GptOssConfig", HEADS | {"num_local_experts": 4}),
    "Mamba": ("MambaConfig", {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}),
    "BERT as a decoder": ("BertConfig", SIZES | {"is_decoder": True}),
}


def save(transformers, folder, path, config, made_by="AutoModelForCausalLM"):
    """Save a model of this config with the tokenizer of `folder`. Its weights are large enough for texts to differ."""
    torch.manual_seed(1)
    model = getattr(transformers, made_by).from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(path)
    (path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    return f"hf:{path}"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_features_of_an_architecture(transformers, folder, tmp_path, architecture):
    kind, sizes = ARCHITECTURES[architecture]
    name = save(transformers, folder, tmp_path, getattr(transformers, kind)(**sizes))
    backbone = load_backbone(name)
    head = RewardHead(feature_count(backbone.model.width), 8)
    model = RewardModel(backbone, head, max_tokens=32, micro_batch_size=3)
    assert features_gap(model, transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()) < 2e-5


NOT_CAUSAL = "a token changes its outputs for earlier ones"  # padding would then change the features
XLNET = {"vocab_size": 300, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32}
T5 = {"vocab_size": 300, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
VIT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
REFUSED = {
    "BERT": ("BertConfig", SIZES, "AutoModelForCausalLM", NOT_CAUSAL),
    "RoBERTa": ("RobertaConfig", SIZES, "AutoModelForCausalLM", NOT_CAUSAL),
    "ELECTRA": ("ElectraConfig", SIZES, "AutoModelForCausalLM", NOT_CAUSAL),
    "XLNet": ("XLNetConfig", XLNET, "AutoModelForCausalLM", NOT_CAUSAL),
    "T5": ("T5Config", T5, "AutoModelForSeq2SeqLM", "a t5 is no causal language model"),
    "ViT": ("ViTConfig", VIT, "AutoModel", "a vit is no causal language model"),
    "weights of NaN": ("GPT2Config", GPT2, "AutoModelForCausalLM", "its outputs for a text are not finite"),
}


@pytest.mark.parametrize("title", REFUSED)
def test_a_model_that_is_no_causal_language_model_is_refused_in_one_line(transformers, folder, tmp_path, title):
    kind, sizes, made_by, message = REFUSED[title]
    name = save(transformers, folder, tmp_path, getattr(transformers, kind)(**sizes), made_by)
    if title == "weights of NaN":
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
        torch.nn.init.constant_(model.transformer.ln_f.weight, torch.nan)
        model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=message) as error:
        load_backbone(name)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400 + len(str(tmp_path))


def test_a_head_on_a_hugging_face_model_is_trained_and_loaded(folder, tmp_path):
    flags = ["--backbone", f"hf:{folder}", "--pairs", str(make_pairs(tmp_path / "pairs"))]
    flags += ["--run-dir", str(tmp_path / "run"), *"--preset tiny --max-tokens 32 --steps 2".split()]
    in_this_process(reward_ddp.train, parse(reward_ddp.PRESETS, flags))
    model = load_reward_model(tmp_path / "run")
    assert model.score(["x = "], ["1\n"]).isfinite().all()
    saved = contents(tmp_path / "run", 2)["config"]
    assert saved["tokenizer_state"]["tokenizer"]["model"]["vocab"]["<|end|>"] == 0


def test_a_tokenizer_of_another_model_is_refused(transformers, folder, tmp_path):
    size = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    config = transformers.GPT2Config(vocab_size=size - 1, n_positions=32, n_embd=16, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(InputError, match=f"another model's: it has {size} tokens, the model knows {size - 1}"):
        load_backbone(f"hf:{tmp_path}")


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("config.json", None, "config.json"),
        ("config.json", '{"model_type": ', "config.json"),
        ("model.safetensors", None, "model.safetensors"),
        ("tokenizer.json", None, "it has no tokenizer.json"),
    ],
)
def test_the_loaders_own_reason_is_shown(folder, tmp_path, file, content, reason):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / file).unlink()
    if content:
        (tmp_path / file).write_text(content)
    with pytest.raises(InputError, match=f"cannot load the backbone hf:{tmp_path}: ") as error:
        load_backbone(prepare_backbone(f"hf:{tmp_path}"))
    assert reason in str(error.value) and "\n" not in str(error.value)


def test_a_checkpoint_alone_downloads_nothing(transformers, monkeypatch, tmp_path):
    """A reward model whose checkpoint names a model of the hub: nothing asks the hub until the user names it."""
    import huggingface_hub

    downloads = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: downloads.append(name) or str(tmp_path))
    config = {"backbone": "hf:somebody/model", "head_width": 8, "max_tokens": 32, "micro_batch_size": 4}
    saved = checkpoint.save(tmp_path / "run", 1, {"head": {}, "config": config, "identity": {"backbone": "0" * 16}})
    with pytest.raises(InputError, match="hf:somebody/model is no folder of this machine, and is not downloaded"):
        load_reward_model(saved)
    assert not downloads
    assert prepare_backbone("hf:somebody/model") == f"hf:{tmp_path}" and downloads == ["somebody/model"]


def test_a_package_that_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=f"the backbone hf:{tmp_path} needs the package: pip install transformers"):
        prepare_backbone(f"hf:{tmp_path}")


class StandIn(nn.Module):
    """A stand-in for nanochat's model: lm_head, config, and logits that are squashed after lm_head."""

    def __init__(self):
        super().__init__()
        self.config = types.SimpleNamespace(n_embd=8, sequence_len=64)
        self.embedding, self.lm_head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)

    def forward(self, tokens):
        return 15 * torch.tanh(self.lm_head(self.embedding(tokens).cumsum(1)) / 15)


@pytest.fixture
def nanochat(monkeypatch):
    """A loader with the signature of nanochat's is installed; the list of its calls."""
    calls = []

    def load_model(source, *args, **kwargs):
        calls.append((source, args, kwargs))
        if source == "rl":
            raise FileNotFoundError("No checkpoints found in /somewhere/chatrl_checkpoints")
        torch.manual_seed(1)
        tokenizer = types.SimpleNamespace(
            encode=lambda text: [ord(letter) % 50 for letter in text],
            get_bos_token_id=lambda: 49,
            get_vocab_size=lambda: 50,
            decode=lambda ids: "".join(chr(50 + token) for token in ids),
        )
        return StandIn(), tokenizer, {}

    package = types.ModuleType("nanochat")
    package.checkpoint_manager = types.ModuleType("nanochat.checkpoint_manager")
    package.checkpoint_manager.load_model = load_model
    monkeypatch.setitem(sys.modules, "nanochat", package)
    monkeypatch.setitem(sys.modules, "nanochat.checkpoint_manager", package.checkpoint_manager)
    return calls


def test_nanochats_own_loader_is_called(nanochat):
    backbone = load_backbone("nanochat:sft/d20/650")
    device = torch.device("cpu")
    assert nanochat == [("sft", (), {"device": device, "phase": "eval", "model_tag": "d20", "step": 650})]
    backbone.model.assert_frozen()
    tokens = torch.tensor([[49, 1, 2, 3]])
    states, logits = backbone.model.read(tokens, torch.tensor([0, 0]), torch.tensor([0, 2]))
    own = backbone.model.model
    assert (states == own.embedding(tokens).cumsum(1)).all()
    torch.testing.assert_close(logits, own(tokens)[0, [0, 2]])
    model = RewardModel(backbone, RewardHead(feature_count(8), 4), max_tokens=16)
    assert model.score(["a", ""], ["b", "cd"]).isfinite().all()
    with pytest.raises(InputError, match="backbone nanochat:rl: FileNotFoundError: No checkpoints found"):
        load_backbone("nanochat:rl")


def test_a_fingerprint_depends_on_weights_and_tokenizer_and_not_on_the_number_format(tmp_path):
    original = load_backbone(f"minigpt:{make_backbone(tmp_path / 'one')}")
    same = load_backbone(f"minigpt:{make_backbone(tmp_path / 'same')}")
    other = load_backbone(f"minigpt:{make_backbone(tmp_path / 'other', seed=2)}")
    assert fingerprint(original) == fingerprint(same) != fingerprint(other)
    same.model.double()
    assert fingerprint(original) == fingerprint(same)
    same.tokenizer_state["name"] = "another"
    assert fingerprint(original) != fingerprint(same)
    assert json.dumps(original.tokenizer_state)


def test_any_text_of_a_policy_gets_a_reward(tmp_path):
    """An untrained policy samples NUL bytes, broken UTF-8 and empty texts."""
    model = RewardModel(
        load_backbone(f"minigpt:{make_backbone(tmp_path / 'run')}"), RewardHead(feature_count(16), 8), max_tokens=32
    )
    written = ["a\0b", "\0", b"\xff\xfe(".decode(errors="replace"), ""]
    assert model.score(["def f():"] * len(written), written).isfinite().all()
