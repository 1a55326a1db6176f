"""Draw which rank reads which sample: a row for each epoch or way of sharding, a cell for each sample."""

import textwrap

from matplotlib.patches import Rectangle

from ddp_course.base.errors import InputError
from ddp_course.lab.figures.labels import label_inside
from ddp_course.lab.figures.style import MUTED, ink_on, new_figure, rank_colour

ROW = 0.42  # inches
NUMBERS, TICKS = 50, 34  # the most samples at which a cell has room for its rank's number, and for a tick
EDGE = "#B8B8B8"


def who_reads(rows: dict, samples: int, title: str, what: str = "sample", stuck: dict | None = None):
    """A grid in which cell (row, sample) has the colour and the number of the rank that reads the sample.

    rows: name -> {rank: the samples that it reads}. The cell of a sample that is read several times is split into one
        part for each reading, from bottom to top in the order of the ranks; that of a sample never read is empty.
    samples: the number of samples, which are numbered from 0.
    what: the word for a sample on the axis.
    stuck: name -> {rank: the sample at which it waits until the time-out}, for rows that hang; the cell is hatched.
    Raises InputError if there are no rows, or if a rank reads a sample that does not exist.
    """
    if not rows:
        raise InputError("who_reads needs at least one row, got none.")
    figure, axes = new_figure(title, 0.75 + ROW * len(rows))
    for row, (name, by_rank) in enumerate(rows.items()):
        readers = [[] for _ in range(samples)]
        for rank, rank_samples in sorted(by_rank.items()):
            for sample in rank_samples:
                if not 0 <= sample < samples:
                    raise InputError(f"In {name!r} rank {rank} reads sample {sample} of {samples} samples.")
                readers[sample].append(rank)
        for sample, ranks in enumerate(readers):
            _cell(axes, sample, row, ranks, samples)
        for rank, sample in (stuck or {}).get(name, {}).items():
            box = {"facecolor": "none", "edgecolor": rank_colour(rank), "hatch": "////", "linewidth": 1.5}
            axes.add_patch(Rectangle((sample + 0.03, row + 0.08), 0.94, 0.84, **box))
    axes.set_xlim(0, samples)
    axes.set_ylim(len(rows) - 0.04, -0.04)
    axes.set_yticks([row + 0.5 for row in range(len(rows))], [textwrap.fill(str(name), 26) for name in rows])
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9) if samples / step <= TICKS)
    axes.set_xticks([sample + 0.5 for sample in range(0, samples, step)], range(0, samples, step))
    encoding = "in each cell" if samples <= NUMBERS else "colour"
    meaning = f"{what}    ({encoding}: the rank that reads it; split: read more than once; empty: never)"
    meaning += "\nhatched: the rank waits here until the time-out" if stuck else ""
    axes.set_xlabel(meaning, color=MUTED, fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


def _cell(axes, sample: int, row: int, ranks: list[int], samples: int) -> None:
    """Draw the cell of a sample that these ranks read, in order, of `samples` in the row."""
    axes.add_patch(Rectangle((sample + 0.03, row + 0.08), 0.94, 0.84, facecolor="none", edgecolor=EDGE, linewidth=0.6))
    for part, rank in enumerate(ranks):
        height = 0.84 / len(ranks)
        bottom = row + 0.92 - (part + 1) * height  # the axis points down
        colour = rank_colour(rank)
        corner, white = (sample + 0.03, bottom), {"edgecolor": "white", "linewidth": 0.6}
        axes.add_patch(Rectangle(corner, 0.94, height, facecolor=colour, **white))
        if samples <= NUMBERS and len(ranks) <= 3:
            size = 9 if len(ranks) == 1 and samples <= TICKS else 7
            label_inside(axes, sample + 0.5, bottom + height / 2, rank, size, ink_on(colour))
