"""Make, solve, augment and compare sudokus.

A board is a tuple of digits, row by row: 16 of them for 4x4, 81 for 9x9; 0 is an empty cell. All random numbers come
from `random()` of a `random.Random` that the caller seeds, which Python keeps the same in all versions.
"""

import hashlib
import math
import random
import time
from collections.abc import Callable, Sequence
from functools import cache

from ddp_course.base.errors import InputError

Board = tuple[int, ...]
SolvedPuzzle = tuple[Board, Board]  # a puzzle and its solution
SIZES = (4, 9)  # the number of digits, and of cells in a row
MOST_4X4 = 2 * 2**16  # upper bound: two solved boards up to augmentation, times the subsets of 16 cells
SECONDS_BETWEEN_REPORTS = 5


def solutions(board: Sequence[int], limit: int = 2, rng: random.Random | None = None) -> list[Board]:
    """Find up to `limit` solutions of a board; none if its clues contradict each other.

    Search with backtracking, always in the cell with the fewest digits left. With `rng`, digits are tried in random
    order: the first solution of an empty board is then a random grid.
    """
    size = size_of(board)
    free, cells, solved = _FreeDigits(size), list(board), []
    for cell, digit in enumerate(board):
        if digit and not free.use(cell, digit):
            return []
    empty = [cell for cell, digit in enumerate(board) if not digit]

    def search() -> None:
        if not empty:
            solved.append(tuple(cells))
            return
        cell = min(empty, key=lambda candidate: free.bits(candidate).bit_count())
        empty.remove(cell)
        for digit in _shuffled(range(1, size + 1), rng) if rng else range(1, size + 1):
            if len(solved) < limit and free.use(cell, digit):
                cells[cell] = digit
                search()
                free.toggle(cell, digit)
        empty.append(cell)

    search()
    return solved


def make(rng: random.Random, size: int, clues: int) -> SolvedPuzzle:
    """Make a random puzzle with exactly one solution, and return both.

    Cells are emptied in random order as long as the solution stays unique, until `clues` are left. Some orders end
    with more clues, none of which can be removed.
    """
    if size not in SIZES:
        raise InputError(f"a sudoku of size {size} was asked for, expected one of {', '.join(map(str, SIZES))}")
    [solution] = solutions((0,) * size**2, 1, rng)
    puzzle, clue_count = list(solution), size**2
    for cell in _shuffled(range(size**2), rng):
        if clue_count <= clues:
            break
        puzzle[cell] = 0
        if len(solutions(puzzle)) == 1:
            clue_count -= 1
        else:
            puzzle[cell] = solution[cell]
    return tuple(puzzle), solution


def make_distinct(
    seed: int, size: int, count: int, fewest: int, most: int, say: Callable[[str], object] = print
) -> list[SolvedPuzzle]:
    """Make `count` pairs (puzzle, solution), none an augmentation of another, with about `fewest` to `most` clues.

    Puzzle k does not depend on `count`. `say` gets the progress every few seconds. Raises InputError if `count` is
    larger than the number of such puzzles, or if 1000 tries in a row find no new puzzle.
    """
    if size == 4 and count > MOST_4X4:
        raise InputError(f"{count} sudokus of size 4 were asked for; there are fewer than {MOST_4X4:,} of them")
    reported = time.monotonic()
    known: set[str] = set()
    made: list[SolvedPuzzle] = []
    number = missed = 0
    while len(made) < count:
        rng = random.Random(f"puzzle {number} of seed {seed}")
        puzzle, solution = make(rng, size, fewest + int(rng.random() * (most - fewest + 1)))
        number += 1
        missed += 1
        if (key := fingerprint(puzzle, solution)) not in known:
            known.add(key)
            made.append((puzzle, solution))
            missed = 0
        if time.monotonic() - reported > SECONDS_BETWEEN_REPORTS:
            reported = time.monotonic()
            say(f"made {len(made):,} of {count:,} sudokus, {missed:,} tries since the last new one")
        if missed > 1000:
            raise InputError(
                f"{count} sudokus of size {size} with {fewest} to {most} clues were asked for, but after {len(made)} "
                f"the last {missed} were all augmentations of known ones: ask for fewer, or for a wider range of clues"
            )
    return made


def augment(puzzle: Board, solution: Board, rng: random.Random) -> SolvedPuzzle:
    """Permute the digits, rows and columns as the rules allow, and perhaps transpose. The solution stays unique."""
    size = size_of(puzzle)
    box = math.isqrt(size)

    def order() -> list[int]:  # permutes the bands, and the rows within a band: a box stays a box
        bands = _shuffled(range(box), rng)
        return [band * box + row for band in bands for row in _shuffled(range(box), rng)]

    rows, columns, transposed = order(), order(), rng.random() < 0.5
    digits = [0, *_shuffled(range(1, size + 1), rng)]
    cells = [column * size + row if transposed else row * size + column for row in rows for column in columns]
    return tuple(digits[puzzle[cell]] for cell in cells), tuple(digits[solution[cell]] for cell in cells)


def fingerprint(puzzle: Board, solution: Board) -> str:
    """A hash that a puzzle and all its augmentations share. Two different puzzles may collide, which is rare.

    Keeping one puzzle per fingerprint therefore keeps no puzzle twice. This is colour refinement (Weisfeiler and
    Leman, 1968): a cell's first colour says whether it is a clue. Then, three times, each cell gets a new colour from
    the colours in its row, column and box and of the cells with its digit, independent of order and of digit names.
    """
    size = size_of(puzzle)
    colours = ["given" if digit else "empty" for digit in puzzle]
    for _ in range(3):
        group_colours: dict[tuple[str, int], list[str]] = {}
        for cell, colour in enumerate(colours):
            for group in _groups(size, cell, solution[cell]):
                group_colours.setdefault(group, []).append(colour)
        summary = {group: _hash(*sorted(members)) for group, members in group_colours.items()}
        new = []
        for cell, colour in enumerate(colours):
            row, column, box, digit = (summary[group] for group in _groups(size, cell, solution[cell]))
            new.append(_hash(colour, *sorted((row, column)), box, digit))  # transposed, a row is a column
        colours = new
    return _hash(*sorted(colours))


def is_solved(board: Sequence[int]) -> bool:
    """Whether each row, column and box has every digit once."""
    return 0 not in board and len(solutions(board, 1)) == 1


def fill_at_random(puzzle: Board, rng: random.Random) -> Board:
    """Guess each empty cell among the digits that no clue in its row, column or box has: a baseline for models."""
    size = size_of(puzzle)
    free = _FreeDigits(size)
    for cell, digit in enumerate(puzzle):
        if digit:
            free.use(cell, digit)
    guess = list(puzzle)
    for cell, digit in enumerate(puzzle):
        if not digit:
            candidates = [candidate for candidate in range(1, size + 1) if free.allows(cell, candidate)]
            guess[cell] = candidates[int(rng.random() * len(candidates))]
    return tuple(guess)


def size_of(board: Sequence[int]) -> int:
    """The number of digits, and of cells in a row. Raises InputError if the board has neither 16 nor 81 cells."""
    size = math.isqrt(len(board))
    if size**2 != len(board) or size not in SIZES:
        expected = " or ".join(str(digits**2) for digits in SIZES)
        raise InputError(f"a board has {len(board)} cells, expected {expected}")
    return size


@cache
def cell_groups(size: int) -> list[tuple[int, int, int]]:
    """(row, column, box) of each cell, counted from 0."""
    box = math.isqrt(size)
    return [(cell // size, cell % size, cell // size // box * box + cell % size // box) for cell in range(size**2)]


def _groups(size: int, cell: int, digit: int) -> list[tuple[str, int]]:
    return list(zip(("row", "column", "box", "digit"), (*cell_groups(size)[cell], digit), strict=True))


class _FreeDigits:
    """The digits that each row, column and box has not used yet. Digit d is bit d - 1 of an integer."""

    def __init__(self, size: int) -> None:
        self._groups = cell_groups(size)
        self._rows, self._columns, self._boxes = ([(1 << size) - 1] * size for _ in range(3))

    def bits(self, cell: int) -> int:
        """The digits, as bits, that the rules allow in a cell."""
        row, column, box = self._groups[cell]
        return self._rows[row] & self._columns[column] & self._boxes[box]

    def allows(self, cell: int, digit: int) -> bool:
        return bool(self.bits(cell) & 1 << (digit - 1))

    def use(self, cell: int, digit: int) -> bool:
        """Use a digit in a cell. Returns False and changes nothing if a rule forbids it."""
        allowed = self.allows(cell, digit)
        if allowed:
            self.toggle(cell, digit)
        return allowed

    def toggle(self, cell: int, digit: int) -> None:
        """Use a digit in a cell, or take it back."""
        row, column, box = self._groups[cell]
        bit = 1 << (digit - 1)
        self._rows[row] ^= bit
        self._columns[column] ^= bit
        self._boxes[box] ^= bit


def _shuffled(items: Sequence[int], rng: random.Random) -> list[int]:
    return sorted(items, key=lambda _: rng.random())


def _hash(*parts: str) -> str:
    return hashlib.blake2b("|".join(parts).encode(), digest_size=8).hexdigest()
