"""A map of choices: a grid over two quantities, with the best choice in each cell."""

import itertools
import textwrap

from ddp_course.base.errors import InputError
from ddp_course.lab.figures.style import PALE, ink_on, mix, new_figure, rank_colour

CHARACTERS = 13  # of a line in a cell


def choices(cells: dict, title: str, row: str, column: str, nothing: str = ""):
    """A grid of cells with a word each, coloured by the word.

    cells: (key of a row, key of a column) -> word; every row has the same columns.
    row, column: what the keys are, the labels of the vertical and the horizontal axis.
    nothing: the word whose cells stay pale.
    Raises InputError if there are no cells or one is missing.
    """
    if not cells:
        raise InputError("choices needs at least one cell, got none.")
    rows, columns = (list(dict.fromkeys(key[axis] for key in cells)) for axis in (0, 1))
    missing = [key for key in itertools.product(rows, columns) if key not in cells]
    if missing:
        raise InputError(f"Every row has the same columns; there is no cell for {missing[0]!r}.")
    words = sorted({word for word in cells.values() if word != nothing}, key=lambda word: (word.count("+"), word))
    colours = {word: mix([rank_colour(i), "#FFFFFF"], [0.7, 0.3]) for i, word in enumerate(words)}
    figure, axes = new_figure(title, 0.5 + 0.5 * len(rows))
    for (row_key, column_key), word in cells.items():
        x, y, colour = columns.index(column_key), rows.index(row_key), colours.get(word, PALE)
        axes.barh(y, 1, left=x - 0.5, height=1, color=colour, edgecolor="white", linewidth=1.5)
        axes.text(x, y, textwrap.fill(word, CHARACTERS), ha="center", va="center", fontsize=8, color=ink_on(colour))
    axes.set_xticks(range(len(columns)), [f"{key:,}" if isinstance(key, int) else str(key) for key in columns])
    axes.set_yticks(range(len(rows)), [str(key) for key in rows], parse_math=False)
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(-0.5, len(rows) - 0.5))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(column, loc="left")
    axes.set_ylabel(row, loc="top")
    return figure
