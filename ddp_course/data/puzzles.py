"""Batches of puzzles: one shared order, sliced by rank. The global batch does not depend on the world size.

Each puzzle has an id, which its augmentations share. Ids count from 1; held-out puzzles have id 0.
"""

import hashlib
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from ddp_course.base.errors import InputError
from ddp_course.data import sudoku
from ddp_course.data.puzzle_files import read_distinct
from ddp_course.data.sudoku import SolvedPuzzle
from ddp_course.data.windows import IGNORED

HELD_OUT_ID = 0  # the id of puzzles that have no row of their own in the embedding


@dataclass(frozen=True, eq=False)
class Puzzles:
    """n boards: `clues` and `solutions`, digits as uint8 (n, cells), 0 where empty; `ids`, int64 (n,)."""

    clues: np.ndarray
    solutions: np.ndarray
    ids: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)


class Batch(NamedTuple):
    """A rank's share of a global batch, padded to the length that all ranks have. All int64 but `real`.

    clues (rows, cells): digits, 0 where empty. targets (rows, cells): digit - 1 where the model has to predict it, -100
    at clues and in padded rows. ids (rows,). real (rows,) of bool: False for padding.
    """

    clues: Tensor
    targets: Tensor
    ids: Tensor
    real: Tensor


def make_sets(
    seed: int, size: int, puzzles: int, boards_per_puzzle: int, held_out: int, clues: tuple[int, int]
) -> tuple[Puzzles, Puzzles]:
    """Make two sets of sudokus from `seed`, (training, held out). No puzzle is an augmentation of another.

    The training set has `puzzles` puzzles, each with random augmentations, `boards_per_puzzle` boards in all, which
    share the puzzle's id. The held-out puzzles have id 0 and do not depend on `puzzles` or `boards_per_puzzle`.
    """
    made = sudoku.make_distinct(seed, size, held_out + puzzles, *clues)
    return augment_all(seed, made[held_out:], boards_per_puzzle), held_out_puzzles(made[:held_out])


def read_sets(
    folder: Path, seed: int, size: int, puzzles: int, boards_per_puzzle: int, held_out: int
) -> tuple[Puzzles, Puzzles]:
    """Read the two sets of `make_sets` from a folder with train.csv and test.csv (see `puzzle_files`)."""
    train, test = read_distinct(folder, seed, size, puzzles, held_out)
    return augment_all(seed, train, boards_per_puzzle), held_out_puzzles(test)


def augment_all(seed: int, pairs: list[SolvedPuzzle], boards_per_puzzle: int) -> Puzzles:
    """Add random augmentations to each puzzle, up to `boards_per_puzzle` boards; the ids count from 1."""
    boards, ids = [], []
    for number, (puzzle, solution) in enumerate(pairs, start=1):
        rng = random.Random(f"augmentations of puzzle {number} of seed {seed}")
        augmentations = (sudoku.augment(puzzle, solution, rng) for _ in range(boards_per_puzzle - 1))
        boards += [(puzzle, solution), *augmentations]
        ids += [number] * boards_per_puzzle
    return _arrays(boards, ids)


def held_out_puzzles(pairs: list[SolvedPuzzle]) -> Puzzles:
    """The boards of puzzles that are not trained on, all with the id 0."""
    return _arrays(pairs, [HELD_OUT_ID] * len(pairs))


class PuzzleBatches(IterableDataset):
    """One rank's share of every global batch, from batch number `start` on, as `Batch`es of equal length on all ranks.

    With a `seed` the batches never end: each epoch reads all boards once, in a new order, and its last batch may be
    short. Without a seed there is one epoch in the order of `puzzles`, for evaluation. A global batch holds up to
    `batch_size` boards; rank r takes the r-th of `world_size` equal slices. Slices that are too short are padded with
    rows without targets. A resumed run needs the batch number alone, at any number of ranks: a global batch is a
    function of (seed, number).

    A padded row repeats the first board of its global batch, so it looks up an embedding row that this step uses
    anyway, and the rows that a step touches do not depend on the number of ranks.

    Use it as it is, or in DataLoader(..., batch_size=None, num_workers=...).
    Raises InputError if there is no board, or if the batch size, the rank or the start is out of range.
    """

    def __init__(
        self,
        puzzles: Puzzles,
        *,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int | None = None,
        start: int = 0,
    ) -> None:
        if not len(puzzles):
            raise InputError("there is no puzzle to read, expected at least one")
        if batch_size < 1:
            raise InputError(f"a batch of {batch_size} puzzles was asked for, expected at least 1")
        if not 0 <= rank < world_size:
            raise InputError(f"the rank is {rank} with {world_size} ranks, expected 0 to {world_size - 1}")
        if start < 0:
            raise InputError(f"the first batch has number {start}, expected 0 or more")
        self.puzzles, self.batch_size, self.seed, self.start = puzzles, batch_size, seed, start
        self.rank, self.rows = rank, math.ceil(batch_size / world_size)
        self.per_epoch = math.ceil(len(puzzles) / batch_size)
        self._epoch_order: tuple[int, np.ndarray] | None = None

    def __iter__(self) -> Iterator[Batch]:
        """Yield this rank's batches; in a worker of a DataLoader, the worker's share of them."""
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        numbers = itertools.count(self.start + first, step)
        if self.seed is None:
            numbers = range(self.start + first, self.per_epoch, step)
        for number in numbers:
            yield self._batch(number)

    def global_batch(self, number: int) -> np.ndarray:
        """The boards of global batch `number` (from 0), as indices into the puzzles: the same on every rank."""
        epoch, index = divmod(number, self.per_epoch)
        return self._order(epoch)[index * self.batch_size : (index + 1) * self.batch_size]

    def _order(self, epoch: int) -> np.ndarray:
        """The order of the puzzles in an epoch. The order of one epoch is cached."""
        if self.seed is None:
            return np.arange(len(self.puzzles))
        if self._epoch_order is None or self._epoch_order[0] != epoch:
            generator = np.random.Philox(key=np.array([self.seed, epoch], dtype=np.uint64))
            self._epoch_order = epoch, np.argsort(generator.random_raw(len(self.puzzles)), kind="stable")
        return self._epoch_order[1]

    def _batch(self, number: int) -> Batch:
        boards = self.global_batch(number)
        share = boards[self.rank * self.rows : (self.rank + 1) * self.rows]  # may be short or empty
        padded = np.concatenate([share, np.full(self.rows - len(share), boards[0])])
        real = np.arange(self.rows) < len(share)
        clues = self.puzzles.clues[padded].astype(np.int64)
        targets = self.puzzles.solutions[padded].astype(np.int64) - 1
        targets[(clues > 0) | ~real[:, None]] = IGNORED
        return Batch(*map(torch.from_numpy, (clues, targets, self.puzzles.ids[padded], real)))


def fingerprint(*sets: Puzzles) -> str:
    """A hash over the boards of some sets, 16 hex digits."""
    parts = [array.tobytes() for puzzles in sets for array in (puzzles.clues, puzzles.solutions, puzzles.ids)]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def guess_accuracy(puzzles: Puzzles, seed: int) -> float:
    """The share of puzzles that are solved by giving each empty cell a random digit that the clues allow."""
    rng, solved = random.Random(f"guesses of seed {seed}"), 0
    tries = 10  # of each puzzle
    for clues, solution in zip(puzzles.clues.tolist(), puzzles.solutions.tolist(), strict=True):
        solved += sum(sudoku.fill_at_random(tuple(clues), rng) == tuple(solution) for _ in range(tries))
    return solved / (tries * len(puzzles))


def _arrays(boards: list[SolvedPuzzle], ids: list[int]) -> Puzzles:
    clues, solutions = (np.array(part, dtype=np.uint8) for part in zip(*boards, strict=True))
    return Puzzles(clues, solutions, np.array(ids, dtype=np.int64))
