"""Prompts and answers as token ids, and which of them a step takes."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddp_course.data.pairs import Answer, Pair
from ddp_course.post_training.fine_tuning import IGNORED, Batch, collate, pack
from ddp_course.post_training.policies import Start

Row = dict[str, list[int]]  # input_ids and labels, as in fine_tuning


@dataclass(frozen=True)
class Example:
    """rows: the answer, or the chosen and the rejected one. target_count: how much it counts in a step's mean."""

    rows: tuple[Row, ...]
    target_count: int


def encode(start: Start, pair: Answer | Pair, max_tokens: int) -> Example:
    """An answer counts by its tokens, of which the end of the text is one; a preference pair counts once."""
    if isinstance(pair, Answer):
        row = _row(start, pair.prompt, pair.answer, max_tokens)
        return Example((row,), sum(label != IGNORED for label in row["labels"]))
    return Example(tuple(_row(start, pair.prompt, answer, max_tokens) for answer in (pair.chosen, pair.rejected)), 1)


def _row(start: Start, prompt: str, answer: str, max_tokens: int) -> Row:
    """An example that is too long loses the prompt's beginning; if that is not enough, the answer's end."""
    begin, prompt_ids = list(start.begin), start.tokenizer.encode(prompt)
    answer_ids = [*start.tokenizer.encode(answer), start.tokenizer.end_of_text][: max_tokens - len(begin)]
    room = max_tokens - len(begin) - len(answer_ids)
    begin += prompt_ids[max(0, len(prompt_ids) - room) :]
    return {"input_ids": begin + answer_ids, "labels": [IGNORED] * len(begin) + answer_ids}


def batch_of(examples: Sequence[Example], longest: int | None = None) -> Batch:
    """The first rows of all examples, then their second ones; padded, or packed into windows of at most `longest`."""
    rows = [row for rows in zip(*(example.rows for example in examples), strict=True) for row in rows]
    return pack(rows, min(longest, sum(len(row["labels"]) for row in rows))) if longest else collate(rows)


def examples_of_step(seed: int, step: int, count: int, total: int) -> list[int]:
    """The examples of a step: each once per epoch, in an order that depends on the seed and the epoch alone."""
    positions = range(step * count, (step + 1) * count)
    return [int(_order(seed, position // total, total)[position % total]) for position in positions]


@functools.lru_cache(maxsize=2)
def _order(seed: int, epoch: int, total: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(total)
