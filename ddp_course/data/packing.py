"""The windows that a training run reads: cut out of the stream of tokens anywhere, or packed with documents.

A window that is cut out of the stream is always full, but nearly always begins in the middle of a document. Packed,
documents stay whole wherever they fit, best fit first: Ding et al., "Fewer Truncations Improve Language Modeling"
(2024). What stays empty is no target, so updates differ in how many targets they have, and a mean has to be divided by
that number. As in the stream, a token can attend to an earlier document of its window.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ddp_course.base.errors import InputError
from ddp_course.data.shards import Shards
from ddp_course.data.windows import IGNORED, micro_batches, window_starts

BLOCK = 8_000_000  # tokens that are looked at together


class StreamWindows:
    """Windows that start anywhere in the stream, as `windows.micro_batches` draws them."""

    described = ""

    def __init__(self, tokens: np.ndarray | Shards, end_of_text: int, context: int, seed: int, per_update: int) -> None:
        """As PackedWindows; `end_of_text` is a token like others. Raises InputError for less text than a window."""
        window_starts(seed, 0, 1, len(tokens), context)
        self._tokens, self._context, self._seed, self._per_update = tokens, context, seed, per_update

    def micro_batches(self, **which: int) -> Iterator[tuple[Tensor, Tensor]]:
        return micro_batches(self._tokens, context=self._context, seed=self._seed, **which)

    def targets(self, update: int) -> int:
        """Targets in the global batch of an update."""
        return self._per_update

    def logged(self, targets: int) -> dict[str, float]:
        """What the metrics say of an update: nothing, for its windows are full."""
        return {}


class PackedWindows:
    """Windows that hold whole documents, and parts only of those that are longer than a window.

    A document ends with `end_of_text`. One of more than context + 1 tokens is cut into pieces of that length, of which
    each begins with the last token of the one before: so every token but a document's first is a target exactly once.
    The pieces, the longest first, go into the window with the least room that is enough. `fill_rate`: the share of all
    windows' places that have a target.

    per_update: tokens that the global batch of an update has room for. Every rank packs for itself, and all pack alike.
    Raises InputError if no document has two tokens.
    """

    def __init__(self, tokens: np.ndarray | Shards, end_of_text: int, context: int, seed: int, per_update: int) -> None:
        self._tokens, self._context, self._seed, self._per_update = tokens, context, seed, per_update
        starts, lengths = pieces(document_ends(tokens, end_of_text), context)
        if not len(starts):
            raise InputError(f"--pack needs a document of 2 tokens or more, the corpus has {len(tokens)} tokens in all")
        window = best_fit(lengths, context + 1)
        order = np.argsort(window, kind="stable")
        self._starts, self._lengths = starts[order], lengths[order]
        self._first = np.searchsorted(window[order], np.arange(window.max() + 2))  # each window's first piece
        self._targets = np.bincount(window, weights=lengths - 1).astype(np.int64)
        self.fill_rate = self._targets.sum() / (len(self._targets) * context)

    def __len__(self) -> int:
        return len(self._targets)

    @property
    def described(self) -> str:
        return f" in {len(self):,} packed windows, {self.fill_rate:.1%} filled"

    def micro_batches(
        self, *, update: int, micro_batch_size: int, accumulation_steps: int, rank: int, world_size: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """One rank's share of an update, in shape and order as of `windows.micro_batches`."""
        drawn = self._draw(update, accumulation_steps * world_size * micro_batch_size)
        for mine in drawn.reshape(accumulation_steps, world_size, micro_batch_size)[:, rank]:
            inputs, targets = zip(*map(self.window, mine.tolist()), strict=True)
            yield torch.tensor(np.stack(inputs)), torch.tensor(np.stack(targets))

    def targets(self, update: int) -> int:
        """Targets in the global batch of an update: the same number on all ranks, and nothing is sent for it."""
        return int(self._targets[self._draw(update, self._per_update // self._context)].sum())

    def logged(self, targets: int) -> dict[str, float]:
        """What the metrics say of an update: the share of its places that have a target."""
        return {"fill_rate": targets / self._per_update}

    def window(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets, int64 of (context,). What is empty, and the end of a piece, has the target -100."""
        block, targets, place = np.zeros(self._context + 1, np.int64), np.full(self._context + 1, IGNORED), 0
        for piece in range(self._first[number], self._first[number + 1]):
            start, length = self._starts[piece], self._lengths[piece]
            block[place : place + length] = self._tokens[start : start + length]
            targets[place : place + length - 1] = block[place + 1 : place + length]
            place += length
        return block[:-1], targets[:-1]

    def _draw(self, update: int, windows: int) -> np.ndarray:
        """The windows of an update, as those of the stream are drawn: a function of (seed, update, place) alone."""
        return window_starts(self._seed, update, windows, len(self) + self._context, self._context)


def document_ends(tokens: np.ndarray | Shards, end_of_text: int) -> np.ndarray:
    """One past the last token of each document, int64. The last document may lack its end of text."""
    found = [
        first + 1 + np.flatnonzero(np.asarray(tokens[first : first + BLOCK]) == end_of_text)
        for first in range(0, len(tokens), BLOCK)
    ]
    return np.union1d(np.concatenate(found) if found else [], len(tokens)).astype(np.int64)


def pieces(ends: np.ndarray, context: int) -> tuple[np.ndarray, np.ndarray]:
    """(first token, length) of all pieces of documents, int64, in order. A piece has 2 to context + 1 tokens."""
    begins = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    counts = -(-(ends - begins - 1) // context)  # a piece has up to `context` targets; a document of one token none
    document = np.repeat(np.arange(len(ends)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = begins[document] + number * context
    return starts, np.minimum(context + 1, ends[document] - starts)


def best_fit(lengths: np.ndarray, capacity: int) -> np.ndarray:
    """The window, counted from 0, that each piece goes into: the longest first, into the least room that is enough."""
    with_room: list[list[int]] = [[] for _ in range(capacity + 1)]
    rooms, windows = 0, 0  # bit r of rooms: some window has room for r more tokens
    chosen = np.empty(len(lengths), np.int64)
    for piece in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[piece])
        enough = rooms >> length
        if enough:
            room = length + (enough & -enough).bit_length() - 1
            window = with_room[room].pop()
            rooms ^= (not with_room[room]) << room
        else:
            room, window, windows = capacity, windows, windows + 1
        chosen[piece] = window
        with_room[room - length].append(window)
        rooms |= 1 << (room - length)
    return chosen
