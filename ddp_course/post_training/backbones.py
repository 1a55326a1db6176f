"""Load a backbone by name: the frozen language model below a reward head, with its own tokenizer.

    minigpt:PATH                     a checkpoint of minigpt_ddp, or the newest of a run directory
    hf:FOLDER or hf:OWNER/NAME       a causal language model of Hugging Face transformers
    nanochat:SOURCE[/TAG[/STEP]]     what nanochat's own loader finds: base, mid, sft or rl

There is no default and nothing falls back: a backbone that cannot be loaded is an error with the loader's own reason.
transformers and nanochat are imported only for a backbone that needs them.
"""

import hashlib
import json
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ddp_course.base.errors import InputError
from ddp_course.checkpoint import checkpoint
from ddp_course.models.minigpt import MiniGPT
from ddp_course.models.reward import FrozenBackbone, Read
from ddp_course.post_training.pretrained import load_pretrained, newest_checkpoint

KINDS = "minigpt:PATH, hf:FOLDER_OR_NAME or nanochat:SOURCE"


@dataclass(frozen=True)
class Backbone:
    """A frozen model on the CPU, with its tokenizer.

    encode: text to token ids, without special tokens. begin: the token id before every prompt, so that a completion's
    first token has a predecessor even if the prompt is empty. tokenizer_state: plain JSON types, saved with the head.
    tokenizer: the library's own object.
    """

    name: str
    model: FrozenBackbone
    encode: Callable[[str], list[int]]
    begin: int
    tokenizer_state: dict
    tokenizer: object


def fingerprint(backbone: Backbone) -> str:
    """16 hex digits that two backbones share only if all their weights and their tokenizers are equal.

    Weights are compared in float32, so that a copy in float64 is the same backbone.
    """
    digest = hashlib.sha256(json.dumps(backbone.tokenizer_state, sort_keys=True).encode())
    for name, tensor in backbone.model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def prepare_backbone(name: str, *, fetch: bool = True) -> str:
    """Resolve a backbone's name to one that means the same on all ranks. Call it on one rank and broadcast the result.

    A run directory becomes the newest valid checkpoint in it, a folder its full path, and a model of the Hugging Face
    hub is downloaded, once, into a folder that all ranks of this machine can read. `fetch=False` downloads nothing:
    for names that a checkpoint holds. Raises InputError for a name of another form, or a backbone that does not exist.
    """
    kind, location = _kind_and_location(name)
    if kind == "minigpt":
        path = newest_checkpoint(Path(location).absolute())
        if damage := checkpoint.problem(path):
            raise InputError(f"cannot load the backbone {name}: {damage}")
        return f"minigpt:{path}"
    if kind == "hf":
        _import_transformers(name)
        if Path(location).is_dir():
            return f"hf:{Path(location).absolute()}"
        if not fetch:
            raise InputError(
                f"the backbone {name} is no folder of this machine, and is not downloaded on the word of a checkpoint: "
                f"name it yourself, by --backbone or --reward-backbone"
            )
        from huggingface_hub import snapshot_download

        try:
            return "hf:" + snapshot_download(location, allow_patterns=["*.json", "*.safetensors", "*.model"])
        except Exception as error:  # as in _huggingface
            raise _loading_error(name, error) from error
    return name


def load_backbone(name: str) -> Backbone:
    """Load a backbone, frozen and in eval mode. Nothing is downloaded: `prepare_backbone` does that.

    Raises InputError for a name of another form, a package that is not installed, any error of the loader, or a model
    that is not causal, whose features would depend on the padding.
    """
    name = prepare_backbone(name, fetch=False)
    kind, location = _kind_and_location(name)
    backbone = {"minigpt": _minigpt, "hf": _huggingface, "nanochat": _nanochat}[kind](name, location)
    try:
        backbone.model.assert_causal()
    except InputError as error:
        raise InputError(f"cannot use the backbone {name}: {error}") from None
    return backbone


def _kind_and_location(name: str) -> tuple[str, str]:
    kind, _, location = name.partition(":")
    if kind not in ("minigpt", "hf", "nanochat") or not location:
        raise InputError(f"no backbone {name!r}: a name has the form {KINDS}")
    return kind, location


def _minigpt(name: str, location: str) -> Backbone:
    pretrained = load_pretrained(location)
    tokenizer = pretrained.tokenizer
    frozen = frozen_minigpt(pretrained.model)
    name = f"minigpt:{pretrained.source}"
    return Backbone(name, frozen, tokenizer.encode, tokenizer.end_of_text, tokenizer.state(), tokenizer)


def frozen_minigpt(model: MiniGPT) -> FrozenBackbone:
    """Freeze a MiniGPT. Its output layer is taken out of it, so that it returns the hidden states."""
    output, model.output = model.output, nn.Identity()

    def read(tokens: Tensor, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        states = model(tokens)
        return states, output(states[row, column])

    return FrozenBackbone(model, output, read, model.config.width, model.config.context)


def read_through(logits_of: Callable[[Tensor], Tensor], output: nn.Module) -> Read:
    """A `Read` that calls the model's own forward pass, in which the output layer gets the chosen positions only.

    Some models change the logits after their output layer (Gemma 2 caps them, Cohere and Granite scale them), so the
    logits are taken from the model and not from the layer. Raises InputError if the model does not call the layer.
    """

    def read(tokens: Tensor, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        states: list[Tensor] = []

        def keep_positions(layer: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
            states.append(inputs[0])
            return (inputs[0][row, column][None],)

        handle = output.register_forward_pre_hook(keep_positions)
        try:
            logits = logits_of(tokens)
        finally:
            handle.remove()
        if len(states) != 1 or logits.shape[:-1] != (1, len(row)):
            raise InputError("its last layer is not called once for each token, with all that it reads")
        return states[0], logits[0]

    return read


def _huggingface(name: str, location: str) -> Backbone:
    transformers = _import_transformers(name)
    # Not AutoTokenizer: for a folder without a tokenizer it silently returns one with an empty vocabulary.
    file = Path(location) / "tokenizer.json"
    if not file.is_file():
        raise InputError(f"cannot load the backbone {name}: it has no tokenizer.json, its tokenizer in one file")
    import tokenizers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # its warnings would come from every rank
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
        config = transformers.AutoConfig.from_pretrained(location, trust_remote_code=False, local_files_only=True)
        if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
            raise InputError(f"cannot load the backbone {name}: a {config.model_type} is no causal language model")
        model = transformers.AutoModelForCausalLM.from_pretrained(
            location, config=config, dtype=torch.float32, local_files_only=True
        )
    except InputError:
        raise
    except Exception as error:  # these libraries raise nearly everything, and their message is the one that helps
        raise _loading_error(name, error) from error
    vocab_size = model.get_input_embeddings().num_embeddings
    output = model.get_output_embeddings()
    config = model.config.get_text_config()
    if output is None:
        raise InputError(f"cannot load the backbone {name}: it has no last layer that gives logits")
    if tokenizer.get_vocab_size() > vocab_size:
        raise InputError(
            f"the tokenizer of {name} is another model's: it has {tokenizer.get_vocab_size()} tokens, "
            f"the model knows {vocab_size}"
        )
    special_ids = (config.bos_token_id, config.eos_token_id)
    begin = next((token for token in special_ids if isinstance(token, int) and token < vocab_size), 0)
    read = read_through(lambda tokens: model(input_ids=tokens, use_cache=False).logits, output)
    sizes = (getattr(config, size, None) for size in ("max_position_embeddings", "max_seq_len"))
    context = next((size for size in sizes if isinstance(size, int) and size > 0), 2048)
    # Not config.hidden_size: OPT-350m projects its states to half of it first.
    frozen = FrozenBackbone(model, output, read, output.weight.shape[1], context)
    state = {"name": "huggingface", "tokenizer": json.loads(tokenizer.to_str())}

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    return Backbone(name, frozen, encode, begin, state, tokenizer)


def _nanochat(name: str, location: str) -> Backbone:
    try:
        from nanochat.checkpoint_manager import load_model
    except ImportError as error:
        raise InputError(f"the backbone {name} needs the package nanochat, which cannot be imported: {error}") from None
    source, tag, step = [*location.split("/"), None, None][:3]
    try:
        model, tokenizer, _ = load_model(
            source, device=torch.device("cpu"), phase="eval", model_tag=tag, step=None if step is None else int(step)
        )
    except Exception as error:  # as in _huggingface
        raise _loading_error(name, error) from error
    frozen = FrozenBackbone(
        model, model.lm_head, read_through(model, model.lm_head), model.config.n_embd, model.config.sequence_len
    )
    state = {"name": "nanochat", "vocab_size": tokenizer.get_vocab_size()}
    return Backbone(name, frozen, tokenizer.encode, tokenizer.get_bos_token_id(), state, tokenizer)


def _import_transformers(name: str):
    try:
        import transformers
    except ImportError as error:
        raise InputError(f"the backbone {name} needs the package: pip install transformers ({error})") from None
    return transformers


def _loading_error(name: str, error: Exception) -> InputError:
    reason = textwrap.shorten(str(error), 400, placeholder=" ...")
    return InputError(f"cannot load the backbone {name}: {type(error).__name__}: {reason}")
