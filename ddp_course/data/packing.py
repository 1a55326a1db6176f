"""Training windows: cut out of the stream of tokens at random positions, or packed with whole documents.

A window that is cut out of the stream is always full, but nearly always begins in the middle of a document. Packing
keeps documents whole wherever they fit, by best-fit-decreasing: Ding et al., "Fewer Truncations Improve Language
Modeling" (2024). Padding is no target, so the number of targets differs from step to step, and a mean loss has to be
divided by that number. As in the stream, a token can attend to an earlier document of its window.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ddp_course.base.errors import InputError
from ddp_course.data.shards import BLOCK_TOKENS, Shards
from ddp_course.data.windows import IGNORED, micro_batches, window_starts


class StreamWindows:
    """Windows that start anywhere in the stream, as `windows.micro_batches` draws them."""

    description = ""  # text after the number of training tokens, when a run starts

    def __init__(self, tokens: np.ndarray | Shards, end_of_text: int, context: int, seed: int, per_update: int) -> None:
        """The arguments are those of PackedWindows. Raises InputError if the text is shorter than a window."""
        window_starts(seed, 0, 1, len(tokens), context)  # checks the seed and the length
        self._tokens, self._context, self._seed, self._per_update = tokens, context, seed, per_update

    def micro_batches(self, **arguments: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield one rank's micro-batches of a step. arguments: the others of `windows.micro_batches`."""
        return micro_batches(self._tokens, context=self._context, seed=self._seed, **arguments)

    def targets(self, step: int) -> int:
        """The number of targets in a step's global batch."""
        return self._per_update

    def metrics(self, targets: int) -> dict[str, float]:
        """Further metrics of a step: none, because all windows are full."""
        return {}


class PackedWindows:
    """Windows that hold whole documents, and parts only of those that are longer than a window.

    A document ends with `end_of_text`. A document of more than context + 1 tokens is cut into chunks of that length,
    each of which begins with the last token of the previous chunk, so every token but a document's first is a target
    exactly once. The longest chunks are placed first, each into the window with the least sufficient room.
    `fill_rate`: the share of positions that have a target.

    per_update: tokens per update, the capacity of a step's global batch. Every rank computes the same packing.
    Raises InputError if no document has two tokens.
    """

    def __init__(self, tokens: np.ndarray | Shards, end_of_text: int, context: int, seed: int, per_update: int) -> None:
        self._tokens, self._context, self._seed, self._per_update = tokens, context, seed, per_update
        starts, lengths = chunk_documents(document_ends(tokens, end_of_text), context)
        if not len(starts):
            raise InputError(f"--pack needs a document of 2 tokens or more, the corpus has {len(tokens)} tokens in all")
        window = best_fit(lengths, context + 1)
        order = np.argsort(window, kind="stable")
        self._starts, self._lengths = starts[order], lengths[order]
        self._first = np.searchsorted(window[order], np.arange(window.max() + 2))  # each window's first chunk
        self._targets = np.bincount(window, weights=lengths - 1).astype(np.int64)
        self.fill_rate = self._targets.sum() / (len(self._targets) * context)

    def __len__(self) -> int:
        return len(self._targets)

    @property
    def description(self) -> str:
        return f" in {len(self):,} packed windows, {self.fill_rate:.1%} filled"

    def micro_batches(
        self, *, step: int, micro_batch_size: int, gradient_accumulation_steps: int, rank: int, world_size: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield one rank's micro-batches of a step, in shape and order like `windows.micro_batches`."""
        drawn = self._draw(step, gradient_accumulation_steps * world_size * micro_batch_size)
        for windows in drawn.reshape(gradient_accumulation_steps, world_size, micro_batch_size)[:, rank]:
            inputs, targets = zip(*map(self.window, windows.tolist()), strict=True)
            yield torch.tensor(np.stack(inputs)), torch.tensor(np.stack(targets))

    def targets(self, step: int) -> int:
        """The number of targets in a step's global batch. Every rank computes it without communication."""
        return int(self._targets[self._draw(step, self._per_update // self._context)].sum())

    def metrics(self, targets: int) -> dict[str, float]:
        """Further metrics of a step: the share of its positions that have a target."""
        return {"fill_rate": targets / self._per_update}

    def window(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of a window, int64 (context,). Padding and the end of a chunk have the target -100."""
        block = np.zeros(self._context + 1, np.int64)
        targets = np.full(self._context + 1, IGNORED)
        position = 0
        for chunk in range(self._first[number], self._first[number + 1]):
            start, length = self._starts[chunk], self._lengths[chunk]
            block[position : position + length] = self._tokens[start : start + length]
            targets[position : position + length - 1] = block[position + 1 : position + length]
            position += length
        return block[:-1], targets[:-1]

    def _draw(self, step: int, windows: int) -> np.ndarray:
        """The numbers of a step's windows, by a pure function of (seed, step, position), as in StreamWindows."""
        return window_starts(self._seed, step, windows, len(self) + self._context, self._context)


def document_ends(tokens: np.ndarray | Shards, end_of_text: int) -> np.ndarray:
    """The index after the last token of each document, int64. The last document may lack its end of text."""
    ends = [
        first + 1 + np.flatnonzero(np.asarray(tokens[first : first + BLOCK_TOKENS]) == end_of_text)
        for first in range(0, len(tokens), BLOCK_TOKENS)
    ]
    return np.union1d(np.concatenate(ends) if ends else [], len(tokens)).astype(np.int64)


def chunk_documents(ends: np.ndarray, context: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut documents into chunks of 2 to context + 1 tokens: (first token, length) of all chunks, int64, in order."""
    begins = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    targets = ends - begins - 1
    counts = (targets + context - 1) // context  # chunks per document, rounded up; a document of one token has none
    document = np.repeat(np.arange(len(ends)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = begins[document] + number * context
    return starts, np.minimum(context + 1, ends[document] - starts)


def best_fit(lengths: np.ndarray, capacity: int) -> np.ndarray:
    """Choose a window of `capacity` tokens for each chunk: the longest first, into the least sufficient room.

    Returns the window of each chunk, int64, counted from 0.
    """
    with_room: list[list[int]] = [[] for _ in range(capacity + 1)]  # with_room[r]: windows with room for r more tokens
    rooms, windows = 0, 0  # bit r of `rooms` is set if with_room[r] is not empty
    chosen = np.empty(len(lengths), np.int64)
    for chunk in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[chunk])
        enough = rooms >> length
        if enough:
            room = length + (enough & -enough).bit_length() - 1  # the lowest bit of `rooms` from `length` on
            window = with_room[room].pop()
            rooms ^= (not with_room[room]) << room
        else:
            room, window, windows = capacity, windows, windows + 1
        chosen[chunk] = window
        with_room[room - length].append(window)
        rooms |= 1 << (room - length)
    return chosen
