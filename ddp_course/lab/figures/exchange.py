"""Draw a collective: the values that each rank holds before and after it."""

from matplotlib.patches import FancyArrowPatch, Rectangle

from ddp_course.base.errors import InputError
from ddp_course.base.quantity import format_number
from ddp_course.lab.figures.labels import text_width
from ddp_course.lab.figures.style import DARK, MUTED, WIDTH, ink_on, new_canvas, rank_colour

COMBINED = "#DEDEDE"
FONT = 10.5  # points
CELL, ROW, ROW_GAP, LABELS, ARROW, MARGIN = 0.46, 0.4, 0.16, 0.75, 1.5, 0.2  # inches


def _rows(side: str, ranks: dict) -> dict[int, list]:
    """{rank: its cells}, sorted by rank; a rank without data has an empty list.

    Raises InputError if there are no ranks, a key is no rank or a value is no list.
    """
    if not ranks:
        raise InputError(f"collective needs at least one rank in {side!r}, got none.")
    rows = {}
    for rank, cells in sorted(ranks.items()):
        rank_colour(rank)  # raises InputError if this is no rank
        if cells is not None and not hasattr(cells, "__iter__"):
            raise InputError(f"Rank {rank} of {side!r} holds a list of numbers or None, got {cells!r}.")
        rows[rank] = [] if cells is None else list(cells)
    return rows


def collective(name: str, before: dict, after: dict, title: str):
    """The ranks as rows of cells before (left) and after (right) the collective `name`.

    before, after: rank -> list of numbers, or None for a rank that holds nothing; a cell that is None is empty.
    Before, a cell has the colour of its rank. After, it has the colour of the one rank that held that value
    before, or is grey: a combination. Choose values that no two ranks share, or they count as combinations.
    Raises InputError if a side has no ranks or a row is no list.
    """
    left, right = _rows("before", before), _rows("after", after)
    ranks = sorted(left | right)
    columns = [max(1, *(len(rows.get(rank, [])) for rank in ranks)) for rows in (left, right)]
    height = 0.34 + (ROW + ROW_GAP) * len(ranks)
    colours_before = {rank: [rank_colour(rank)] * len(cells) for rank, cells in left.items()}
    colours_after = {rank: [_colour_after(value, left) for value in cells] for rank, cells in right.items()}
    combined = any(COMBINED in colours for colours in colours_after.values())
    if combined:
        height += 0.22

    figure, axes = new_canvas(title, height)
    texts = {format_number(v) for rows in (left, right) for cells in rows.values() for v in cells if v is not None}
    widest = max((text_width(figure, text, FONT) / figure.dpi for text in texts), default=0.1)
    room = (WIDTH - LABELS - ARROW - MARGIN) / sum(columns)
    cell = min(max(CELL, widest + 0.14), room)
    font = FONT * min(1.0, 0.78 * cell / widest)
    starts = [LABELS, LABELS + columns[0] * cell + ARROW]
    sides = zip(("before", "after"), (left, right), starts, columns, (colours_before, colours_after), strict=True)
    for side, rows, start, count, colours in sides:
        axes.text(start + count * cell / 2, 0.13, side, ha="center", va="center", color=MUTED)
        for row, rank in enumerate(ranks):
            top = 0.28 + row * (ROW + ROW_GAP)
            _draw_row(axes, start, top, cell, rows.get(rank, []), colours.get(rank, []), font)
    for row, rank in enumerate(ranks):
        y = 0.28 + row * (ROW + ROW_GAP) + ROW / 2
        axes.text(LABELS - 0.12, y, f"rank {rank}", ha="right", va="center", color=DARK)
    _draw_arrow(axes, name, starts[1] - ARROW, 0.28 + ((ROW + ROW_GAP) * len(ranks) - ROW_GAP) / 2)
    if combined:
        note = "colour: the one rank that held this number before; grey: a combination"
        axes.text(LABELS, height - 0.15, note, fontsize=8.5, color=MUTED, va="center")
    return figure


def _colour_after(value, cells_before: dict[int, list]) -> str | None:
    """The colour of the one rank that held `value` before, COMBINED if none or several did; None for an empty cell."""
    if value is None:
        return None
    holders = [rank for rank, cells in cells_before.items() if value in cells]
    return rank_colour(holders[0]) if len(holders) == 1 else COMBINED


def _draw_row(axes, start: float, top: float, cell: float, values: list, colours: list, font: float) -> None:
    if not values:
        axes.text(start, top + ROW / 2, "nothing", color=MUTED, style="italic", va="center", fontsize=9)
    for i, (value, colour) in enumerate(zip(values, colours, strict=True)):
        corner = (start + i * cell, top)
        if value is None:
            empty = {"facecolor": "none", "edgecolor": "#B5B5B5", "linestyle": (0, (2, 2))}
            axes.add_patch(Rectangle((corner[0] + 0.03, top + 0.03), cell - 0.06, ROW - 0.06, **empty))
            continue
        axes.add_patch(Rectangle(corner, cell, ROW, facecolor=colour, edgecolor="white", linewidth=1.5))
        middle = (corner[0] + cell / 2, top + ROW / 2)
        axes.text(*middle, format_number(value), ha="center", va="center", fontsize=font, color=ink_on(colour))


def _draw_arrow(axes, name: str, start: float, y: float) -> None:
    ends = (start + 0.15, y), (start + ARROW - 0.15, y)
    axes.add_patch(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=16, linewidth=1.6, color=DARK))
    axes.text(start + ARROW / 2, y - 0.1, name, ha="center", va="bottom", color=DARK, weight="bold")
