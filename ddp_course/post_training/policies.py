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

    It is in eval mode: with dropout the same completion would have another probability each time.
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
        """Raise InputError if a parameter gets no gradient from a text: DDP waits for one from every parameter."""
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
        """Raise InputError if a packed row has other logits than the row by itself: some models ignore such masks."""
        tokens = torch.arange(8, device=next(self.parameters()).device)[None]
        row = torch.ones(4, 4, dtype=torch.bool)
        mask = torch.block_diag(row, row).tril().to(tokens.device)[None, None]
        try:
            packed = self(tokens, position_ids=tokens % 4, attention_mask=mask)[:, 4:]
        except (TypeError, ValueError) as error:
            raise InputError(f"--pack: {self.config.policy} takes no mask of a packed window: {error}") from None
        if not torch.allclose(packed, self(tokens[:, 4:]), rtol=1e-3, atol=1e-3):
            raise InputError(f"--pack: {self.config.policy} does not keep the rows of a packed window apart")


class PolicyTokenizer(Protocol):
    """The tokenizer of a policy: `data.tokenizer.Tokenizer`, or a `NanochatTokenizer`."""

    end_of_text: int

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Iterable[int]) -> str: ...

    def state(self) -> dict: ...


@dataclass(frozen=True)
class InitialPolicy:
    """The model that a run starts from, on the CPU, in float32 and eval mode, with its tokenizer.

    begin: tokens before every prompt, as in the model's pre-training. weights: a fingerprint of the weights.
    """

    model: MiniGPT | ForeignModel
    tokenizer: PolicyTokenizer
    begin: tuple[int, ...]
    weights: str


class NanochatTokenizer:
    """nanochat's tokenizer as a PolicyTokenizer. The token that begins a document also ends the one before it."""

    def __init__(self, library: object, state: dict) -> None:
        self.encode = library.encode
        self.decode = lambda ids: library.decode(list(ids))
        self.end_of_text, self._state = library.get_bos_token_id(), state

    def state(self) -> dict:
        return dict(self._state)


def prepare_policy(name: str) -> str:
    """Resolve a name to one that means the same on all ranks, as `prepare_backbone`. Call it on one rank."""
    return prepare_backbone(name) if name.startswith(("minigpt:", *FOREIGN)) else name


def load_policy(name: str) -> InitialPolicy:
    """Load the policy `name`, as `prepare_policy` returned it. Nothing is downloaded.

    Raises InputError for a missing or damaged checkpoint, a model that is not causal or has parameters that get no
    gradient from a text, or a tokenizer without an end-of-text token.
    """
    if not name.startswith(FOREIGN):
        pretrained = load_pretrained(name.removeprefix("minigpt:"))
        weights = (pretrained.source / CHECKSUM).read_text().split()[0][:16]
        return InitialPolicy(pretrained.model, pretrained.tokenizer, (), weights)
    backbone = load_backbone(name)
    weights = fingerprint(backbone)
    model = ForeignModel(backbone.model.model, ForeignConfig(backbone.name, backbone.model.context))
    model.requires_grad_(True).assert_trainable()
    if backbone.name.startswith("hf:"):
        policy_tokenizer = tokenizer.existing(backbone.name.removeprefix("hf:"))
    else:
        policy_tokenizer = NanochatTokenizer(backbone.tokenizer, backbone.tokenizer_state)
    return InitialPolicy(model, policy_tokenizer, (backbone.begin,), weights)


def write_as_folder(model: MiniGPT | ForeignModel, folder: Path) -> Path | None:
    """Write a Hugging Face policy to `folder`, for hf: and transformers, and return it. None for other policies.

    An existing folder is kept as it is.
    """
    if not isinstance(model, ForeignModel) or not model.config.policy.startswith("hf:"):
        return None
    if not folder.exists():
        with replacing_folder(folder) as temporary:
            model.model.save_pretrained(temporary)
            for file in Path(model.config.policy.removeprefix("hf:")).glob("*token*.json"):
                shutil.copy(file, temporary)
    return folder


@contextlib.contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield the path of a temporary folder to create. It becomes `folder` when the block ends, or goes if it raises.

    Every error becomes an InputError.
    """
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.rename(temporary, folder)
    except Exception as error:  # OSError, or whatever a library makes of a full disk
        raise InputError(f"cannot write {folder}: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
