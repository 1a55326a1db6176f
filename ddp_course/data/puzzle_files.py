"""Sudokus from a folder: `train.csv` and `test.csv` with the columns question and answer, one puzzle per line.

A board is a text of 16 or 81 digits, row by row, with a dot or a 0 for an empty cell. Other columns are left alone, so
the published sudoku-extreme files can be read as they are.
"""

import csv
import random
from collections.abc import Iterator
from pathlib import Path

from ddp_course.base.errors import InputError
from ddp_course.data import sudoku
from ddp_course.data.sudoku import Board, SolvedPuzzle
from ddp_course.data.text_files import input_errors

TRAIN, TEST = "train.csv", "test.csv"


def read_distinct(
    folder: Path, seed: int, size: int, train: int, test: int
) -> tuple[list[SolvedPuzzle], list[SolvedPuzzle]]:
    """Draw `train` puzzles from train.csv and `test` from test.csv at random, none an augmentation of another.

    Raises InputError if a file is missing or holds too few, and for a line that is no sudoku of this size.
    """
    rng, known = random.Random(f"puzzles drawn with seed {seed}"), set()
    return _draw(folder / TRAIN, size, train, rng, known), _draw(folder / TEST, size, test, rng, known)


def _draw(path: Path, size: int, count: int, rng: random.Random, known: set[str]) -> list[SolvedPuzzle]:
    """Draw `count` puzzles from a file. Their fingerprints are not in `known`, and are added to it."""
    lines, drawn = list(_lines(path)), []
    for _, number, question, answer in sorted((rng.random(), *line) for line in lines):
        if len(drawn) == count:
            break
        puzzle, solution = _board(question, size), _board(answer, size)
        solved = puzzle and solution and sudoku.is_solved(solution)
        if not solved or any(clue not in (0, cell) for clue, cell in zip(puzzle, solution, strict=True)):
            raise InputError(
                f"{path}, line {number}: {question!r} with answer {answer!r} is no {size}x{size} sudoku "
                f"with its solution: expected {size**2} digits, with a dot for an empty cell"
            )
        key = sudoku.fingerprint(puzzle, solution)
        if key not in known and 0 in puzzle:
            known.add(key)
            drawn.append((puzzle, solution))
    if len(drawn) < count:
        raise InputError(f"{path} holds {len(drawn)} different puzzles, but {count} were asked for")
    return drawn


def _lines(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, question, answer) of each row."""
    with input_errors(path), open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        try:
            missing = {"question", "answer"} - set(reader.fieldnames or ())
            if missing:
                raise InputError(f"{path} has no column {max(missing)!r}: its first line must name question and answer")
            for row in reader:
                yield reader.line_num, row["question"] or "", row["answer"] or ""
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{path} is no CSV file in UTF-8: {error}") from None


def _board(text: str, size: int) -> Board | None:
    """Parse a board. Returns None if the text is no board of this size."""
    text = text.strip().replace(".", "0")
    digits = tuple(int(digit) for digit in text) if text.isascii() and text.isdigit() else ()
    return digits if len(digits) == size**2 and max(digits) <= size else None
