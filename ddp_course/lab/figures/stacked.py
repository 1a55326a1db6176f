"""Stacked bars: the parts of a step's time, or of a rank's memory."""

import textwrap

from ddp_course.base.errors import InputError
from ddp_course.base.quantity import is_number
from ddp_course.lab.figures.labels import label_inside, name_rows, text_width
from ddp_course.lab.figures.style import DARK, NEUTRAL, PALE, RANK_COLOURS, ink_on, new_figure

COLOURS = [RANK_COLOURS[1], RANK_COLOURS[4], RANK_COLOURS[0], DARK, NEUTRAL, PALE, *RANK_COLOURS[2:4]]
LABEL = 8  # points


def stacked_bars(rows: dict, title: str, unit: str):
    """One horizontal bar per row, from the top, made of its parts from the left.

    rows: name -> {part: number from 0 up}; every row has the same parts in the same order. A part has one colour.
    Raises InputError if there are no rows, their parts differ or are too many, or a value is no such number.
    """
    if not rows:
        raise InputError("stacked_bars needs at least one row, got none.")
    parts = list(next(iter(rows.values())))
    for name, row in rows.items():
        if list(row) != parts or len(parts) > len(COLOURS):
            raise InputError(f"Every row has the same parts, at most {len(COLOURS)}; {name!r} has {', '.join(row)}.")
        wrong = [part for part, value in row.items() if not is_number(value) or value < 0]
        if wrong:
            raise InputError(f"{wrong[0]!r} of {name!r} needs a number from 0 up, got {row[wrong[0]]!r}.")
    figure, axes = new_figure(title, 0.95 + 0.42 * len(rows))
    left = [0.0] * len(rows)
    for part, colour in zip(parts, COLOURS, strict=False):
        values = [row[part] for row in rows.values()]
        axes.barh(
            range(len(rows)), values, left=left, height=0.66, color=colour, label=part, edgecolor="white", linewidth=0.7
        )
        left = [start + value for start, value in zip(left, values, strict=True)]
    name_rows(axes, [textwrap.fill(str(name), 26) for name in rows])
    axes.set_xlim(0, 1.02 * max(left) or 1)
    axes.set_xlabel(unit, loc="left")
    figure.legend(loc="outside lower left", ncols=len(parts), fontsize=8, columnspacing=1.2, handlelength=1.2)
    _label_parts(figure, axes, rows, parts)
    return figure


def _label_parts(figure, axes, rows: dict, parts: list[str]) -> None:
    """Write each part's number inside it, if there is room."""
    figure.draw_without_rendering()  # settles the layout, so that the width of a pixel is known
    pixel = (axes.get_xlim()[1] - axes.get_xlim()[0]) / axes.get_window_extent().width
    for row, values in enumerate(rows.values()):
        left = 0.0
        for part, colour in zip(parts, COLOURS, strict=False):
            text = f"{values[part]:.3g}"
            if text_width(figure, text, LABEL) + 6 <= values[part] / pixel:
                label_inside(axes, left + values[part] / 2, row, text, LABEL, ink_on(colour))
            left += values[part]
