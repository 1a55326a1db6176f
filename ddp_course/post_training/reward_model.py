"""A reward model that scores text: a frozen backbone, its tokenizer, and a head trained by reward_ddp."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ddp_course.base.errors import InputError
from ddp_course.checkpoint import checkpoint
from ddp_course.checkpoint.best_checkpoint import best_valid
from ddp_course.models.reward import RewardHead, feature_count
from ddp_course.post_training.backbones import Backbone, fingerprint, load_backbone
from ddp_course.post_training.pretrained import config_of, newest_checkpoint
from ddp_course.training.precision import autocast


class RewardModel(nn.Module):
    """`score` computes the rewards of completions: `features` by the backbone, then `head`.

    Texts go through the backbone `micro_batch_size` at a time, sorted by length, and through the head all at once. A
    text of more than `max_tokens` loses the beginning of its prompt, and if that is not enough the end of its
    completion. An empty completion is judged by the last token of its prompt.
    """

    def __init__(
        self,
        backbone: Backbone,
        head: RewardHead,
        *,
        max_tokens: int,
        micro_batch_size: int = 32,
        precision: str = "float32",
    ) -> None:
        super().__init__()
        if not 2 <= max_tokens <= backbone.model.context:
            raise InputError(
                f"--max-tokens is {max_tokens}, expected 2 to {backbone.model.context}, the context of {backbone.name}"
            )
        self.backbone, self.head = backbone.model, head
        self.encode, self.begin = backbone.encode, backbone.begin
        self.max_tokens, self.micro_batch_size, self.precision = max_tokens, micro_batch_size, precision

    def features(self, prompts: Sequence[str], completions: Sequence[str]) -> Tensor:
        """The features of each text for the head: (n, features), in the head's dtype, without gradients."""
        weight = self.head.expand.weight
        texts = [self.tokens(*text) for text in zip(prompts, completions, strict=True)]
        features = weight.new_empty(len(texts), feature_count(self.backbone.width))
        by_length = sorted(range(len(texts)), key=lambda n: len(texts[n][0]))  # little padding in a micro-batch
        for first in range(0, len(texts), self.micro_batch_size):
            rows = by_length[first : first + self.micro_batch_size]
            tokens, starts, lengths = padded([texts[n] for n in rows], weight.device)
            with autocast(self.precision, weight.device):
                features[rows] = self.backbone(tokens, starts, lengths).to(weight.dtype)
        return features

    @torch.no_grad()
    def score(self, prompts: Sequence[str], completions: Sequence[str]) -> Tensor:
        """Rewards of the completions, (n,) of float32 on the model's device: higher is better."""
        return self.head(self.features(prompts, completions)).float()

    def fingerprint(self) -> str:
        """16 hex digits that depend on the weights of the head. Its checkpoint holds the backbone's own fingerprint."""
        weights = (tensor.float().cpu().numpy().tobytes() for tensor in self.head.state_dict().values())
        return hashlib.sha256(b"".join(weights)).hexdigest()[:16]

    def tokens(self, prompt: str, completion: str) -> tuple[list[int], int]:
        """The tokens of prompt and completion, at most `max_tokens`, and the index at which the completion starts.

        A NUL, which a policy may write and no tokenizer accepts, is replaced by U+FFFD.
        """
        completion_tokens = self.encode(completion.replace("\0", "\N{REPLACEMENT CHARACTER}"))[: self.max_tokens - 1]
        prompt_tokens = [self.begin, *self.encode(prompt)][-(self.max_tokens - len(completion_tokens)) :]
        start = len(prompt_tokens) if completion_tokens else len(prompt_tokens) - 1
        return prompt_tokens + completion_tokens, start


def padded(texts: Sequence[tuple[list[int], int]], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(token ids, start of the completion) of each text -> tokens (n, longest), starts (n,), lengths (n,): int64.

    Padding is on the right, where no token of the text can see it; its value is 0 and does not matter.
    """
    lengths = torch.tensor([len(tokens) for tokens, _ in texts])
    rows = pad_sequence([torch.tensor(tokens) for tokens, _ in texts], batch_first=True)
    starts = torch.tensor([start for _, start in texts])
    return rows.to(device), starts.to(device), lengths.to(device)


def load_reward_model(path: str | Path, device: torch.device | str = "cpu", backbone: str = "") -> RewardModel:
    """Load a reward model, frozen and in eval mode.

    path: a checkpoint of reward_ddp, or its run directory, of which the best checkpoint is read if it is valid, else
    the newest valid one. backbone: its name, if it is no longer where the checkpoint says; that of the checkpoint is
    never downloaded. Raises InputError, also for a backbone with other weights or another tokenizer than in training.
    """
    path = Path(path)
    if os.path.isdir(path / "checkpoints"):
        path = best_valid(path) or newest_checkpoint(path)
    state = checkpoint.load(path, "read a reward model from")
    with checkpoint.content_errors(path, "reward_ddp", "read a reward model from"):
        return _from_state(path, state, backbone).requires_grad_(False).eval().to(device)


def _from_state(path: Path, state: dict, backbone: str) -> RewardModel:
    config = config_of(state, path, "reward_ddp", "head", {"backbone", "head_width", "max_tokens", "micro_batch_size"})
    base = load_backbone(backbone or config["backbone"])
    trained_on = state.get("identity", {}).get("backbone")
    if fingerprint(base) != trained_on:
        raise InputError(
            f"{path} was trained on another backbone: its fingerprint is {trained_on}, that of {base.name} is "
            f"{fingerprint(base)}"
        )
    head = RewardHead(feature_count(base.model.width), config["head_width"])
    head.load_state_dict(state["head"])
    return RewardModel(base, head.float(), max_tokens=config["max_tokens"], micro_batch_size=config["micro_batch_size"])
