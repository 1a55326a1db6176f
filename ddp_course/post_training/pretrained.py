"""A pre-trained MiniGPT with its tokenizer, read from a checkpoint of the trainer."""

import os
from dataclasses import dataclass
from pathlib import Path

from ddp_course.base.errors import InputError
from ddp_course.checkpoint import checkpoint
from ddp_course.data import tokenizer
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig


@dataclass(frozen=True)
class Pretrained:
    """`model` on the CPU in float32 and eval mode; `tokenizer` as it was trained; `source`: the checkpoint's path."""

    model: MiniGPT
    tokenizer: tokenizer.Tokenizer
    source: Path


def newest_checkpoint(path: str | Path) -> Path:
    """The newest valid checkpoint of a run directory, if it has one; another path unchanged."""
    path = Path(path)
    if os.path.isdir(path / "checkpoints"):
        return checkpoint.newest_valid(path) or path
    return path


def config_of(state: dict, path: Path, script: str, part: str, names: set[str]) -> dict:
    """The config in the state of a checkpoint of `script`.

    Raises InputError if the state has no `part`, or its config lacks one of these names: another script wrote it.
    """
    config = state.get("config", {})
    missing = names - config.keys()
    if missing or part not in state:
        raise InputError(
            f"{path} is not a checkpoint of {script} but {checkpoint.description(state)}: it has no "
            f"{min(missing, default=part)!r}"
        )
    return config


def load_pretrained(path: str | Path) -> Pretrained:
    """Read a checkpoint of minigpt_ddp, or the newest valid one of a run directory of it.

    Raises InputError if there is none, if it is damaged, or if another script wrote it.
    """
    path = newest_checkpoint(path)
    state = checkpoint.load(path, "read a model from")
    with checkpoint.content_errors(path, "minigpt_ddp", "read a model from"):
        names = {"context", "layers", "heads", "kv_heads", "width"}
        config = config_of(state, path, "minigpt_ddp or grpo_ddp", "model", names | {"tokenizer_state"})
        model_tokenizer = tokenizer.from_state(config["tokenizer_state"])
        sizes = {name: config[name] for name in names}
        model = MiniGPT(MiniGPTConfig(vocab_size=model_tokenizer.vocab_size, **sizes))
        model.load_state_dict(state["model"])
        return Pretrained(model.eval(), model_tokenizer, path)
