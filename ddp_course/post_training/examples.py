"""Training examples as token ids, the batches made of them, and which examples a step takes."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddp_course.data.pairs import Answer, Pair
from ddp_course.post_training.fine_tuning import IGNORED, Batch, collate, pack
from ddp_course.post_training.policies import InitialPolicy

Row = dict[str, list[int]]  # input_ids and labels, as in fine_tuning


@dataclass(frozen=True)
class Example:
    """rows: of prompt and answer; for a preference pair two, the chosen answer first. target_count: see `encode`."""

    rows: tuple[Row, ...]
    target_count: int


def encode(start: InitialPolicy, pair: Answer | Pair, max_tokens: int) -> Example:
    """An answer or a preference pair as an Example.

    Its target_count, by which a step's summed loss is divided: the tokens of the answer with the end-of-text token, or
    1 for a preference pair.
    """
    if isinstance(pair, Answer):
        row = _row(start, pair.prompt, pair.answer, max_tokens)
        return Example((row,), sum(label != IGNORED for label in row["labels"]))
    return Example(tuple(_row(start, pair.prompt, answer, max_tokens) for answer in (pair.chosen, pair.rejected)), 1)


def _row(start: InitialPolicy, prompt: str, answer: str, max_tokens: int) -> Row:
    """A row of at most `max_tokens` tokens: the prompt is cut at its beginning, then the answer at its end."""
    prompt_ids = start.tokenizer.encode(prompt)
    most_tokens = max_tokens - len(start.begin)
    answer_ids = [*start.tokenizer.encode(answer), start.tokenizer.end_of_text][:most_tokens]
    room = most_tokens - len(answer_ids)
    prompt_ids = [*start.begin, *prompt_ids[max(0, len(prompt_ids) - room) :]]
    return {"input_ids": prompt_ids + answer_ids, "labels": [IGNORED] * len(prompt_ids) + answer_ids}


def batch_of(examples: Sequence[Example], window_length: int | None = None) -> Batch:
    """The first rows of all examples, then their second ones: padded, or packed into windows if a length is given."""
    rows = [row for rows in zip(*(example.rows for example in examples), strict=True) for row in rows]
    if window_length is None:
        return collate(rows)
    return pack(rows, min(window_length, sum(len(row["labels"]) for row in rows)))


def examples_of_step(seed: int, step: int, count: int, total: int) -> list[int]:
    """Indices of a step's `count` examples among `total`: each once per epoch, shuffled by (seed, epoch)."""
    positions = range(step * count, (step + 1) * count)
    return [int(_order(seed, position // total, total)[position % total]) for position in positions]


@functools.lru_cache(maxsize=2)
def _order(seed: int, epoch: int, total: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(total)
