"""Backbones by explicit name: the language model that a reward head reads, with its own tokenizer.

    minigpt:PATH                     a checkpoint of minigpt_ddp, or the newest of a run directory
    hf:FOLDER or hf:OWNER/NAME       a causal language model of Hugging Face transformers
    nanochat:SOURCE[/TAG[/STEP]]     what nanochat's own loader finds: base, mid, sft or rl

There is no default and nothing falls back: a backbone that cannot be loaded is an error with the loader's own reason.
transformers and nanochat are imported when one of theirs is asked for, and not before.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ddp_course.errors import InputError
from ddp_course.models.reward import FrozenBackbone
from ddp_course.parallel import checkpoint
from ddp_course.post_training.pretrained import load_pretrained

KINDS = "minigpt:PATH, hf:FOLDER_OR_NAME or nanochat:SOURCE"


@dataclass(frozen=True)
class Backbone:
    """A frozen model on the CPU, and how text becomes its tokens.

    encode: token ids of a text, nothing added. begin: the id that stands before every prompt, so that also the first
    token of an empty one follows something. tokenizer_state: plain JSON types, saved with the head.
    """

    name: str
    model: FrozenBackbone
    encode: Callable[[str], list[int]]
    begin: int
    tokenizer_state: dict


def fingerprint(backbone: Backbone) -> str:
    """16 hex digits that two backbones share only if all their weights and their tokenizers are equal.

    Weights are compared in float32, so that a copy in float64 is the same backbone.
    """
    digest = hashlib.sha256(json.dumps(backbone.tokenizer_state, sort_keys=True).encode())
    for name, tensor in backbone.model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def prepare_backbone(name: str) -> str:
    """The name with everything settled that may differ between ranks; call it on one rank, the others use its result.

    A run directory becomes the newest valid checkpoint in it, a folder its full path, and a model of the Hugging Face
    hub is downloaded, once, into a folder that all ranks of this machine can read.
    Raises InputError for a name of another form, or for what is not there.
    """
    kind, where = _parts(name)
    if kind == "minigpt":
        path = Path(where).absolute()
        if (path / "checkpoints").is_dir():
            path = checkpoint.newest_valid(path) or path
        if found := checkpoint.problem(path):
            raise InputError(f"cannot load the backbone {name}: {found}")
        return f"minigpt:{path}"
    if kind == "hf":
        _transformers(name)
        if Path(where).is_dir():
            return f"hf:{Path(where).absolute()}"
        from huggingface_hub import snapshot_download

        try:
            return "hf:" + snapshot_download(where, allow_patterns=["*.json", "*.safetensors", "*.model"])
        except Exception as error:  # as in _huggingface
            raise _cannot_load(name, error) from error
    return name


def load_backbone(name: str) -> Backbone:
    """The backbone that `name` means, frozen and in eval mode.

    Raises InputError for a name of another form, a package that is not installed, or whatever the loader complained of.
    """
    name = prepare_backbone(name)
    kind, where = _parts(name)
    return {"minigpt": _minigpt, "hf": _huggingface, "nanochat": _nanochat}[kind](name, where)


def _parts(name: str) -> tuple[str, str]:
    kind, colon, where = name.partition(":")
    if kind not in ("minigpt", "hf", "nanochat") or not colon or not where:
        raise InputError(f"no backbone {name!r}: a name has the form {KINDS}")
    return kind, where


def _minigpt(name: str, where: str) -> Backbone:
    pretrained = load_pretrained(where)
    model, tokenizer = pretrained.model, pretrained.tokenizer
    output, model.output = model.output, nn.Identity()  # without its last layer it returns what that layer would read
    frozen = FrozenBackbone(model, model, output, model.config.width, model.config.context)
    return Backbone(f"minigpt:{pretrained.source}", frozen, tokenizer.encode, tokenizer.end_of_text, tokenizer.state())


def _huggingface(name: str, where: str) -> Backbone:
    transformers = _transformers(name)
    # Not AutoTokenizer: where there is no tokenizer, it makes up one without a vocabulary and says nothing.
    file = Path(where) / "tokenizer.json"
    if not file.is_file():
        raise InputError(f"cannot load the backbone {name}: it has no tokenizer.json, its tokenizer in one file")
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
        transformers.utils.logging.disable_progress_bar()
        model = transformers.AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32)
    except Exception as error:  # these libraries raise nearly everything, and their message is the one that helps
        raise _cannot_load(name, error) from error
    known, config = model.get_input_embeddings().num_embeddings, model.config
    if tokenizer.get_vocab_size() > known:
        raise InputError(
            f"the tokenizer of {name} is another model's: it has {tokenizer.get_vocab_size()} tokens, "
            f"the model knows {known}"
        )
    begin = next((one for one in (config.bos_token_id, config.eos_token_id) if isinstance(one, int) and one < known), 0)

    def states(tokens: torch.Tensor) -> torch.Tensor:
        return model.base_model(input_ids=tokens, use_cache=False).last_hidden_state

    output, context = model.get_output_embeddings(), getattr(config, "max_position_embeddings", None) or 2048
    frozen = FrozenBackbone(model, states, output, config.hidden_size, context)
    state = {"name": "huggingface", "tokenizer": json.loads(tokenizer.to_str())}
    return Backbone(name, frozen, lambda text: tokenizer.encode(text, add_special_tokens=False).ids, begin, state)


def _nanochat(name: str, where: str) -> Backbone:
    try:
        from nanochat.checkpoint_manager import load_model
    except ImportError as error:
        raise InputError(f"the backbone {name} needs the package nanochat, which cannot be imported: {error}") from None
    source, tag, step = (where.split("/") + [None, None])[:3]
    try:
        model, tokenizer, _ = load_model(
            source, device=torch.device("cpu"), phase="eval", model_tag=tag, step=None if step is None else int(step)
        )
    except Exception as error:
        raise _cannot_load(name, error) from error
    read: list[torch.Tensor] = []
    model.lm_head.register_forward_pre_hook(lambda layer, inputs: read.append(inputs[0]))

    def states(tokens: torch.Tensor) -> torch.Tensor:
        read.clear()
        model(tokens)
        return read.pop()

    frozen = FrozenBackbone(model, states, model.lm_head, model.config.n_embd, model.config.sequence_len)
    state = {"name": "nanochat", "vocab_size": tokenizer.get_vocab_size()}
    return Backbone(name, frozen, tokenizer.encode, tokenizer.get_bos_token_id(), state)


def _transformers(name: str):
    try:
        import transformers
    except ImportError as error:
        raise InputError(f"the backbone {name} needs the package: pip install transformers ({error})") from None
    return transformers


def _cannot_load(name: str, error: Exception) -> InputError:
    reason = " ".join(str(error).split())
    return InputError(f"cannot load the backbone {name}: {type(error).__name__}: {reason}")
