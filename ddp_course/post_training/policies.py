"""The policy that GRPO trains: a MiniGPT, or a causal language model of Hugging Face transformers or nanochat.

runs/mine, minigpt:runs/mine     a checkpoint of minigpt_ddp or grpo_ddp, or the newest of a run directory
hf:FOLDER or hf:OWNER/NAME       Hugging Face transformers; at its end the run writes such a folder itself
nanochat:SOURCE[/TAG[/STEP]]     what nanochat's own loader finds: base, mid, sft or rl
"""

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from ddp_course.base.errors import InputError
from ddp_course.checkpoint.checkpoint import CHECKSUM
from ddp_course.data import tokenizer
from ddp_course.models.minigpt import MiniGPT
from ddp_course.post_training.backbones import fingerprint, load_backbone, prepare_backbone
from ddp_course.post_training.pretrained import load_pretrained

FOREIGN = ("hf:", "nanochat:")  # how the name of another library's model begins


@dataclass(frozen=True)
class ForeignConfig:
    """The configuration of a policy that is no MiniGPT. `context`: the longest text in tokens."""

    policy: str
    context: int


class ForeignModel(nn.Module):
    """A model of another library, called as MiniGPT is: tokens (n, length) of int64 -> logits (n, length, vocabulary).

    It stays in eval mode: dropout would give the same completion another probability each time.
    """

    def __init__(self, model: nn.Module, config: ForeignConfig) -> None:
        super().__init__()
        self.model, self.config = model, config
        self._options = {"use_cache": False} if config.policy.startswith("hf:") else {}
        self.eval()

    def forward(self, tokens: Tensor, **masks: Tensor) -> Tensor:
        output = self.model(tokens, **masks, **self._options)
        return output if isinstance(output, Tensor) else output.logits

    def assert_trainable(self) -> None:
        """Raise InputError if a parameter gets no gradient from a text: DDP waits for one from each, on every rank."""
        device = next(self.parameters()).device
        self(torch.arange(min(8, self.config.context), device=device)[None]).sum().backward()
        unused = [name for name, parameter in self.named_parameters() if parameter.grad is None]
        self.zero_grad(set_to_none=True)
        if unused:
            raise InputError(
                f"cannot train {self.config.policy}: {len(unused)} of its parameters get no gradient from "
                f"a text, which DDP needs; the first is {unused[0]}"
            )

    @torch.no_grad()
    def assert_packs(self) -> None:
        """Raise InputError if a row has other logits in a packed window than on its own: not all models take masks."""
        tokens, row = torch.arange(8, device=next(self.parameters()).device)[None], torch.ones(4, 4, dtype=torch.bool)
        mask = torch.block_diag(row, row).tril().to(tokens.device)[None, None]
        try:
            packed = self(tokens, position_ids=tokens % 4, attention_mask=mask)[:, 4:]
        except (TypeError, ValueError) as error:
            raise InputError(f"--pack: {self.config.policy} takes no mask of a packed window: {error}") from None
        if not torch.allclose(packed, self(tokens[:, 4:]), rtol=1e-3, atol=1e-3):
            raise InputError(f"--pack: {self.config.policy} does not keep the rows of a packed window apart")


class Words(Protocol):
    """The interface of a policy's tokenizer, which data.tokenizer.Tokenizer has."""

    end_of_text: int

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Iterable[int]) -> str: ...

    def state(self) -> dict: ...


@dataclass(frozen=True)
class Start:
    """Load the initial policy of a run: the model on the CPU, in float32 and eval mode, and its tokenizer.

    begin: tokens that stand before every prompt, as the model has learnt it. weights: a string that differs between
    models with other weights.
    """

    model: MiniGPT | ForeignModel
    tokenizer: Words
    begin: tuple[int, ...]
    weights: str


class NanochatTokenizer:
    """nanochat's tokenizer with our names. Its documents begin with the token that thereby ends the one before."""

    def __init__(self, library: object, state: dict) -> None:
        self.encode, self.decode = library.encode, lambda ids: library.decode(list(ids))
        self.end_of_text, self._state = library.get_bos_token_id(), state

    def state(self) -> dict:
        return dict(self._state)


def prepare_policy(name: str) -> str:
    """The name with everything settled that may differ between ranks, see `prepare_backbone`. Call it on one rank."""
    return prepare_backbone(name) if name.startswith(("minigpt:", *FOREIGN)) else name


def load_policy(name: str) -> Start:
    """The model that `name`, made by `prepare_policy`, means. Nothing is downloaded.

    Raises InputError for what is not there or damaged, a model that looks to the right, one with parameters that not
    every text uses, or a tokenizer that knows no end of a text.
    """
    if not name.startswith(FOREIGN):
        start = load_pretrained(name.removeprefix("minigpt:"))
        return Start(start.model, start.tokenizer, (), (start.source / CHECKSUM).read_text().split()[0][:16])
    backbone = load_backbone(name)
    weights = fingerprint(backbone)
    model = ForeignModel(backbone.model.model, ForeignConfig(backbone.name, backbone.model.context))
    model.requires_grad_(True).assert_trainable()
    if backbone.name.startswith("hf:"):
        words = tokenizer.existing(backbone.name.removeprefix("hf:"))
    else:
        words = NanochatTokenizer(backbone.tokenizer, backbone.tokenizer_state)
    return Start(model, words, (backbone.begin,), weights)


def write_as_folder(model: MiniGPT | ForeignModel, where: Path) -> Path | None:
    """Write a Hugging Face policy as a folder that hf: and transformers read; returns it. None for other policies.

    A folder that is there already is left as it is.
    """
    if not isinstance(model, ForeignModel) or not model.config.policy.startswith("hf:"):
        return None
    if not where.exists():
        with replacing_folder(where) as folder:
            model.model.save_pretrained(folder)
            for file in Path(model.config.policy.removeprefix("hf:")).glob("*token*.json"):
                shutil.copy(file, folder)
    return where


@contextlib.contextmanager
def replacing_folder(where: Path) -> Iterator[Path]:
    """The path of a folder to make, which is named `where` when the block ends, and dropped when it raises."""
    temporary = where.with_name(f".{where.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.rename(temporary, where)
    except Exception as error:  # OSError, or whatever a library makes of a full disk
        raise InputError(f"cannot write {where}: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
