"""Sampling with a key-value cache, where a new token costs one token's work, not the whole text's; and without a cache,
for models of other libraries.

In a causal model the keys and values of a token do not depend on later tokens. They are computed once and cached: each
step sends only the newest token of every text through the model.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ddp_course.base.errors import InputError
from ddp_course.models.minigpt import MiniGPT


class KeyValueCache:
    """Keys and values of all tokens so far. Texts may differ in length: a token's place in the cache is its position.

    Entries beyond the end of a shorter text are never visible, and are overwritten as that text grows.
    """

    def __init__(self, model: MiniGPT, capacity: int) -> None:
        """`capacity`: tokens that the longest text will have, at most the model's context."""
        self._model = model
        self._layers = [LayerCache(capacity) for _ in model.blocks]

    def hidden(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Run new tokens through the model. tokens, positions: (texts, new), int64; returns (texts, new, width)."""
        cached = torch.arange(int(positions.max()) + 1, device=positions.device)
        visible = (cached <= positions[:, :, None])[:, None]  # (texts, 1, new, cached): a causal mask
        x = self._model.token_embedding(tokens) + self._model.position_embedding(positions)
        for block, layer in zip(self._model.blocks, self._layers, strict=True):
            layer.positions, layer.visible = positions, visible
            x = block(x, layer)
        return x


class LayerCache:
    """The keys and values of one layer, each (texts, capacity, heads, size), allocated when the first keys arrive."""

    positions: Tensor
    visible: Tensor

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._keys_and_values: tuple[Tensor, ...] = ()

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Store new keys and values (texts, heads, new, size); returns all keys, all values and the attention mask."""
        texts, heads, _, size = key.shape
        if not self._keys_and_values:
            shape = texts, self._capacity, heads, size
            self._keys_and_values = key.new_zeros(shape), key.new_zeros(shape)
        rows = torch.arange(texts, device=key.device)[:, None]
        for cached, new in zip(self._keys_and_values, (key, value), strict=True):
            cached[rows, self.positions] = new.transpose(1, 2)
        keys, values = (cached[:, : self.visible.shape[-1]].transpose(1, 2) for cached in self._keys_and_values)
        return keys, values, self.visible


@torch.no_grad()
def sample(
    model: MiniGPT,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    end_of_text: int | None = None,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """Continue every prompt by up to `new_tokens` tokens; returns the completions, in the order of the prompts.

    A completion ends early with the token `end_of_text`, which it includes. `top_k` limits the choice to that many
    likeliest tokens. Randomness comes from `generator`, or from torch's default one; each step draws for all prompts.

    Past the context's end the window slides, as in `minigpt.generate`. Positions are learned and absolute, so a
    window that slides moves every token to another position, and no cached key or value stays valid: from there on
    every token costs a full pass over the window, without the cache.

    Raises ValueError for an empty prompt, one longer than the context, or a temperature that is not positive, and
    InputError if the model's logits are not finite.
    """
    context, device = model.config.context, model.token_embedding.weight.device
    lengths = [len(prompt) for prompt in prompts]
    if not lengths or new_tokens < 1:
        return [[] for _ in prompts]
    if not 1 <= min(lengths) <= max(lengths) <= context:
        raise ValueError(f"a prompt has 1 to {context} tokens, found {min(lengths)} to {max(lengths)}")
    if not temperature > 0:
        raise ValueError(f"the temperature must be above 0, found {temperature}")
    was_training = model.training
    model.eval()
    texts = [list(prompt) for prompt in prompts]
    cache = KeyValueCache(model, capacity=min(context, max(lengths) + new_tokens))
    ends = torch.tensor(lengths, device=device)
    drawn = ends  # replaced in the first step, before it is read
    finished = [False] * len(texts)
    for step in range(new_tokens):
        if max(lengths) + step > context:
            hidden = _last_of_windows(model, texts, device)
        elif step == 0:
            padded, positions = _padded(texts, device)
            hidden = cache.hidden(padded, positions)[torch.arange(len(texts), device=device), ends - 1]
        else:  # the tokens drawn in the previous step
            hidden = cache.hidden(drawn[:, None], ends[:, None] + (step - 1))[:, 0]
        logits = model.output(model.final_norm(hidden)).float() / temperature
        drawn = _draw(logits, top_k, generator)
        for row, token in enumerate(drawn.tolist()):
            texts[row].append(token)
            finished[row] |= token == end_of_text
        if all(finished):
            break
    model.train(was_training)
    return [_until(text[length:], end_of_text) for text, length in zip(texts, lengths, strict=True)]


@torch.no_grad()
def sample_without_cache(
    logits_of: Callable[[Tensor], Tensor],
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    *,
    device: torch.device,
    rows: int,
    temperature: float = 1.0,
    end_of_text: int | None = None,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """As `sample`, for any causal model: `logits_of` maps tokens (n, length) to logits (n, length, vocabulary).

    Every new token costs a pass over the whole text, which is about the length of a text times the work of `sample`. A
    pass reads `rows` texts at a time, and leaves out texts that have ended. A prompt must not be empty, and with its
    new tokens it must fit the model's context.
    """
    texts, ends = [list(prompt) for prompt in prompts], [len(prompt) for prompt in prompts]
    unfinished = list(range(len(texts)))
    for _ in range(new_tokens):
        if not unfinished:
            break
        last_logits = []
        for first in range(0, len(unfinished), rows):
            part = [texts[row] for row in unfinished[first : first + rows]]
            tokens, _ = _padded(part, device)
            last_logits.append(logits_of(tokens)[torch.arange(len(part)), [len(text) - 1 for text in part]])
        drawn = _draw(torch.cat(last_logits).float() / temperature, None, generator).tolist()
        for row, token in zip(unfinished, drawn, strict=True):
            texts[row].append(token)
        unfinished = [row for row, token in zip(unfinished, drawn, strict=True) if token != end_of_text]
    return [text[end:] for text, end in zip(texts, ends, strict=True)]


def _draw(logits: Tensor, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    """Draw one token per row, by its probability. logits: (rows, vocabulary); returns (rows,) of int64.

    Raises InputError if the logits are not finite.
    """
    if not logits.isfinite().all():
        raise InputError("the model has diverged: its logits are not finite, so no token can be drawn from them")
    if top_k is None:
        return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    best = logits.topk(min(top_k, logits.shape[-1]))
    choice = torch.multinomial(best.values.softmax(-1), 1, generator=generator)
    return best.indices.gather(-1, choice)[:, 0]


def _last_of_windows(model: MiniGPT, texts: list[list[int]], device: torch.device) -> Tensor:
    """The hidden state of each text's last token, (texts, width), by a full pass over its last window."""
    windows = [text[-model.config.context :] for text in texts]
    padded, positions = _padded(windows, device)
    x = model.token_embedding(padded) + model.position_embedding(positions)
    for block in model.blocks:
        x = block(x)
    return x[torch.arange(len(windows), device=device), torch.tensor([len(window) - 1 for window in windows])]


def _padded(texts: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens and positions, both (texts, longest). Texts are padded on the right, which a causal model ignores."""
    longest = max(map(len, texts))
    padded = torch.tensor([text + [0] * (longest - len(text)) for text in texts], device=device)
    return padded, torch.arange(longest, device=device).expand(len(texts), -1)


def _until(tokens: list[int], end: int | None) -> list[int]:
    """The tokens up to the first `end`, which is included; all of them if there is none."""
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens
