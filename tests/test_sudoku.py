"""Sudokus: each has one solution, and a fingerprint that its augmentations share and other puzzles do not."""

import itertools
import random

import pytest

from ddp_course.base.errors import InputError
from ddp_course.data import sudoku

pytestmark = pytest.mark.smoke

# A published puzzle, and the only grid that completes it (Wikipedia, "Sudoku").
PUBLISHED = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
SOLVED = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"


def board(text):
    return tuple(map(int, text))


def is_valid(grid, size):
    """Every digit once in each row, column and box: written out, without the module's own tables."""
    box = int(size**0.5)
    lines = [[grid[row * size + column] for column in range(size)] for row in range(size)]
    lines += [[grid[row * size + column] for row in range(size)] for column in range(size)]
    for top in range(0, size, box):
        for left in range(0, size, box):
            lines.append([grid[(top + i) * size + left + j] for i in range(box) for j in range(box)])
    return all(sorted(line) == list(range(1, size + 1)) for line in lines)


def brute_force(puzzle, size):
    """How many grids complete a 4x4 puzzle: all digits in all cells, pruned by nothing but equal clues."""
    rows = list(itertools.permutations(range(1, size + 1)))
    clues = [puzzle[row * size : (row + 1) * size] for row in range(size)]
    fit = [
        [candidate for candidate in rows if all(not g or g == d for g, d in zip(line, candidate, strict=True))]
        for line in clues
    ]
    return sum(is_valid(sum(grid, ()), size) for grid in itertools.product(*fit))


def test_the_solver_finds_the_published_solution():
    assert sudoku.solutions(board(PUBLISHED)) == [board(SOLVED)]


def test_the_solver_counts_like_brute_force():
    rng = random.Random(5)
    for _ in range(12):
        puzzle, solution = sudoku.make(rng, 4, 7)
        weaker = [0 if rng.random() < 0.3 else digit for digit in puzzle]
        assert len(sudoku.solutions(weaker, 1000)) == brute_force(weaker, 4)
    assert len(sudoku.solutions((0,) * 16, 1000)) == 288  # all that exist


def test_contradicting_clues_have_no_solution():
    assert sudoku.solutions((1, 1) + (0,) * 14) == []
    assert sudoku.solutions((1, 2, 3, 0) + (0, 0, 0, 4) + (0,) * 8) == []  # no two clues clash


@pytest.mark.parametrize("size, clues, count", [(4, 6, 30), (9, 32, 3)])
def test_puzzles_have_one_solution_and_their_clues_are_of_it(size, clues, count):
    rng = random.Random(1)
    for _ in range(count):
        puzzle, solution = sudoku.make(rng, size, clues)
        assert is_valid(solution, size) and sudoku.is_solved(solution)
        assert sudoku.solutions(puzzle) == [solution]
        assert all(digit in (0, right) for digit, right in zip(puzzle, solution, strict=True))
        assert size**2 > sum(map(bool, puzzle)) >= clues


@pytest.mark.parametrize("size, count", [(4, 40), (9, 3)])
def test_an_augmentation_is_valid_and_the_same_puzzle(size, count):
    rng = random.Random(2)
    puzzle, solution = sudoku.make(rng, size, size * 2)
    all_augmented = set()
    for _ in range(count):
        augmented, answer = sudoku.augment(puzzle, solution, rng)
        assert is_valid(answer, size)
        assert sudoku.solutions(augmented) == [answer]
        assert sum(map(bool, augmented)) == sum(map(bool, puzzle))
        assert sudoku.fingerprint(augmented, answer) == sudoku.fingerprint(puzzle, solution)
        all_augmented.add(augmented)
    assert len(all_augmented) > count // 2


def test_other_puzzles_have_other_fingerprints():
    """Different puzzles may share a fingerprint, but few may: compared with a form that no two of them share."""
    made = [sudoku.make(random.Random(seed), 4, 6) for seed in range(40)]
    exact = {canonical(puzzle) for puzzle, _ in made}
    fingerprints = {sudoku.fingerprint(*pair) for pair in made}
    assert len(fingerprints) <= len(exact)
    assert len(fingerprints) >= 0.9 * len(exact)


def canonical(puzzle):
    """The smallest of all 128 x 24 augmentations of a 4x4 puzzle."""
    orders = [
        (*first, *second)
        for pair in itertools.permutations([(0, 1), (2, 3)])
        for first in itertools.permutations(pair[0])
        for second in itertools.permutations(pair[1])
    ]
    return min(
        renamed([puzzle[column * 4 + row if transposed else row * 4 + column] for row in rows for column in columns])
        for rows, columns, transposed in itertools.product(orders, orders, (False, True))
    )


def renamed(cells):
    """The cells with their digits numbered in order of appearance: the smallest of all 24 renamings."""
    numbers = {0: 0}
    return tuple(numbers.setdefault(digit, len(numbers)) for digit in cells)


def test_the_same_seed_makes_the_same_puzzles_and_more_of_them():
    few = sudoku.make_distinct(3, 4, 10, 5, 8)
    assert few == sudoku.make_distinct(3, 4, 20, 5, 8)[:10]
    assert few != sudoku.make_distinct(4, 4, 10, 5, 8)
    assert len({canonical(puzzle) for puzzle, _ in few}) == 10


def test_more_puzzles_than_exist_are_refused():
    with pytest.raises(InputError, match="were all augmentations of known ones: ask for fewer"):
        sudoku.make_distinct(1, 4, 10_000, 15, 15)


def test_more_puzzles_than_can_exist_are_refused_before_any_is_made(monkeypatch):
    monkeypatch.setattr(sudoku, "make", lambda *_: pytest.fail("a sudoku was made"))
    with pytest.raises(InputError, match="200000 sudokus of size 4 were asked for; there are fewer than 131,072"):
        sudoku.make_distinct(1, 4, 200_000, 4, 7)


def test_progress_is_reported(monkeypatch):
    messages = []
    monkeypatch.setattr(sudoku, "SECONDS_BETWEEN_REPORTS", 0)
    sudoku.make_distinct(1, 4, 3, 5, 8, say=messages.append)
    assert messages == [f"made {n} of 3 sudokus, 0 tries since the last new one" for n in (1, 2, 3)]


@pytest.mark.parametrize("wrong", [lambda: sudoku.make(random.Random(1), 5, 9), lambda: sudoku.size_of((0,) * 25)])
def test_other_sizes_are_refused(wrong):
    with pytest.raises(InputError, match="expected"):
        wrong()


def test_a_random_fill_keeps_to_the_clues():
    puzzle, solution = sudoku.make(random.Random(1), 4, 8)
    groups = [{("row", cell // 4), ("column", cell % 4), ("box", cell // 8, cell % 4 // 2)} for cell in range(16)]
    guesses = [sudoku.fill_at_random(puzzle, random.Random(seed)) for seed in range(50)]
    for guess in guesses:
        assert all(clue in (0, digit) for clue, digit in zip(puzzle, guess, strict=True)) and 0 not in guess
        clashes = [(a, b) for a in range(16) for b in range(a) if guess[a] == guess[b] and groups[a] & groups[b]]
        assert not any(puzzle[a] or puzzle[b] for a, b in clashes), "a guess repeats a clue"
    assert set(guesses) - {solution}
