"""The rollout of a rank: sample completions, reward them, and compute the log-probabilities of both models.

Nothing here communicates with other ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from ddp_course.data.pairs import Pair
from ddp_course.models import sampling
from ddp_course.models.minigpt import MiniGPT
from ddp_course.post_training.batch import Batch, padded
from ddp_course.post_training.grpo import group_advantages, mean_over_tokens, token_log_probs
from ddp_course.post_training.pairwise_objective import pairwise_advantages
from ddp_course.post_training.policies import ForeignModel, PolicyTokenizer
from ddp_course.training.precision import autocast


class Reward(Protocol):
    """A reward function, fixed during training."""

    def score(self, prompts: Sequence[str], completions: Sequence[str]) -> Tensor:
        """Rewards, shape (n,): higher is better."""


@dataclass(frozen=True)
class RolloutModels:
    """The models of a rollout and its settings: the policy in training, the frozen reference and the reward.

    new_tokens: most tokens of a completion. micro_batch_size: sequences per forward pass. begin: tokens before every
    prompt, see `policies.InitialPolicy`.
    """

    policy: MiniGPT | ForeignModel
    reference: MiniGPT | ForeignModel
    reward: Reward
    tokenizer: PolicyTokenizer
    new_tokens: int
    temperature: float
    micro_batch_size: int
    precision: str
    begin: Sequence[int] = ()

    @property
    def device(self) -> torch.device:
        return next(self.policy.parameters()).device

    @property
    def room(self) -> int:
        """The most tokens that a prompt can have, so that its completion fits into the model's context."""
        return self.policy.config.context - self.new_tokens - len(self.begin)

    def encode(self, prompt: str) -> list[int]:
        """Encode a prompt, and cut its beginning if there is no room for it. Never empty."""
        return [*self.begin, *self.tokenizer.encode(prompt)[-self.room :]] or [self.tokenizer.end_of_text]

    def sample(
        self, model: MiniGPT | ForeignModel, prompts: Sequence[Sequence[int]], seed: int | None = None
    ) -> list[list[int]]:
        """Sample a completion for each prompt, in tokens: by torch's default generator, or by a new one with `seed`.

        A MiniGPT samples with a key-value cache. A model of another library computes the logits of the whole text for
        each token, which is slower but does not depend on that library's cache.
        """
        generator = None if seed is None else torch.Generator(self.device).manual_seed(seed)
        options = {"temperature": self.temperature, "end_of_text": self.tokenizer.end_of_text, "generator": generator}
        with autocast(self.precision, self.device):
            if isinstance(model, MiniGPT):
                return sampling.sample(model, prompts, self.new_tokens, **options)
            return sampling.sample_without_cache(
                model, prompts, self.new_tokens, device=self.device, rows=self.micro_batch_size, **options
            )

    def decode(self, prompt: str, completion: Sequence[int]) -> tuple[str, str]:
        """Prompt and completion as text. A line break between them belongs to the prompt, as in a reward model's pairs.

        A completion that ends with the end-of-text token gets a line break in its place: its last line is complete.
        """
        ended = completion[-1:] == [self.tokenizer.end_of_text]
        text = self.tokenizer.decode(completion[:-1]) + "\n" if ended else self.tokenizer.decode(completion)
        return (prompt + "\n", text[1:]) if text.startswith("\n") else (prompt, text)

    @torch.no_grad()
    def log_probabilities(self, model: MiniGPT | ForeignModel, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """`token_log_probs` of a model for all sequences, without gradients, a micro-batch at a time."""
        parts = tokens.split(self.micro_batch_size)
        with autocast(self.precision, self.device):
            results = [token_log_probs(model(part), part, self.temperature) for part in parts]
        log_probs, entropy = (torch.cat(parts) for parts in zip(*results, strict=True))
        return log_probs, entropy


def sample_groups(models: RolloutModels, prompts: Sequence[str], group_size: int) -> tuple[Batch, int]:
    """Sample `group_size` completions for each prompt, reward them, and compute their advantages within the group.

    Also returns the number of completions that differ from all earlier ones of their group.
    """
    prompts = [prompt for prompt in prompts for _ in range(group_size)]
    ids = [models.encode(prompt) for prompt in prompts]
    completions = models.sample(models.policy, ids)
    texts = [models.decode(*both) for both in zip(prompts, completions, strict=True)]
    rewards = models.reward.score(*zip(*texts, strict=True)).to(models.device)
    advantages = group_advantages(rewards.view(-1, group_size)).flatten()
    groups = [texts[first : first + group_size] for first in range(0, len(texts), group_size)]
    return _batch(models, ids, completions, rewards, advantages), sum(len(set(group)) for group in groups)


def score_pairs(models: RolloutModels, pairs: Sequence[Pair], beta: float) -> tuple[Batch, int]:
    """The two answers of each pair, the chosen one first, with the pairwise objective's weights as advantages.

    Nothing is sampled. Also returns the number of answers.
    """
    prompts = [models.encode(pair.prompt) for pair in pairs for _ in range(2)]
    answers = [(pair.prompt, answer) for pair in pairs for answer in (pair.chosen, pair.rejected)]
    completions = [models.tokenizer.encode(answer)[: models.new_tokens] for _, answer in answers]
    rewards = models.reward.score(*zip(*answers, strict=True)).to(models.device)
    signs = torch.tensor([1.0, -1.0], device=models.device).repeat(len(pairs))  # chosen is better, rejected worse
    batch = _batch(models, prompts, completions, rewards, signs)
    log_probs, reference = (
        mean_over_tokens(values, batch.counted).view(-1, 2) for values in (batch.old, batch.reference)
    )
    advantages = pairwise_advantages(rewards.view(-1, 2), log_probs, reference, beta).flatten()
    return replace(batch, advantages=advantages.to(batch.old.dtype)), len(answers)


def complete(
    models: RolloutModels, model: MiniGPT | ForeignModel, prompts: Sequence[str], seed: int
) -> list[tuple[str, str]]:
    """Sample one completion for each prompt; returns both as text. The same `seed` draws the same random numbers."""
    completions = models.sample(model, [models.encode(prompt) for prompt in prompts], seed) if prompts else []
    return [models.decode(*both) for both in zip(prompts, completions, strict=True)]


def real_completions(models: RolloutModels, prompts: Sequence[str], real: Sequence[str]) -> list[tuple[str, str]]:
    """Each prompt with the code that follows it in the corpus, truncated to `new_tokens` tokens; both as text."""
    return [
        models.decode(prompt, models.tokenizer.encode(text)[: models.new_tokens])
        for prompt, text in zip(prompts, real, strict=True)
    ]


def _batch(
    models: RolloutModels,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    rewards: Tensor,
    advantages: Tensor,
) -> Batch:
    tokens, counted = padded(prompts, completions, models.device)
    old, entropy = models.log_probabilities(models.policy, tokens)
    reference, _ = models.log_probabilities(models.reference, tokens)
    return Batch(tokens, counted, old, reference, entropy, rewards, advantages.to(old.dtype), advantages.sign())
