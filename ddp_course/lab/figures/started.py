"""Draw the collectives that each rank had started when a job hung: which rank is ahead, and where they differ."""

from matplotlib.patches import Rectangle

from ddp_course.base.errors import InputError
from ddp_course.lab.figures.labels import text_width
from ddp_course.lab.figures.style import ALARM, DARK, MUTED, WIDTH, ink_on, new_canvas, rank_colour

LABELS, MARGIN, GAP = 0.75, 0.12, 0.08  # inches
HEAD, BOX, LANE = 0.28, 0.36, 0.82  # inches: the row of numbers, a box, a lane with the text below its boxes
FONT = 9  # points
MOST_COLUMNS = 5


def collectives_started(started: dict, then: dict, title: str):
    """A lane for each rank, with its first, second ... collective in numbered columns; the last MOST_COLUMNS.

    started: rank -> its collectives in order, as text such as "all-reduce [4]"
    then: rank -> what it does after the last of them, as text, drawn below its lane
    In a column in which the ranks differ, boxes are framed, and a rank without a collective gets "not started".
    Raises InputError if there is no rank.
    """
    if not started:
        raise InputError("collectives_started needs at least one rank, got none.")
    ranks, most = sorted(started), max(len(texts) for texts in started.values())
    first, columns = max(0, most - MOST_COLUMNS), max(1, min(most, MOST_COLUMNS))
    height = HEAD + LANE * len(ranks)
    figure, axes = new_canvas(title, height)
    width = (WIDTH - LABELS - MARGIN) / columns
    for column in range(columns):
        middle = LABELS + (column + 0.5) * width
        axes.text(middle, HEAD / 2, f"{first + column + 1}", ha="center", va="center", color=MUTED, fontsize=FONT)
        number = first + column
        texts = [started[rank][number] if number < len(started[rank]) else None for rank in ranks]
        differ = len(set(texts)) > 1
        for row, (rank, text) in enumerate(zip(ranks, texts, strict=True)):
            _draw(figure, axes, text, middle, HEAD + row * LANE, width - GAP, rank_colour(rank), differ)
    for row, rank in enumerate(ranks):
        top = HEAD + row * LANE
        axes.text(LABELS - 0.12, top + BOX / 2, f"rank {rank}", ha="right", va="center", color=DARK)
        axes.text(LABELS + GAP / 2, top + BOX + 0.17, then.get(rank, ""), va="center", color=DARK, fontsize=FONT)
    return figure


def _draw(figure, axes, text: str | None, middle: float, top: float, width: float, colour: str, differ: bool) -> None:
    """Draw the box of a collective, framed if the ranks differ, or "not started" for None; sizes are in inches."""
    if text is None:
        axes.text(middle, top + BOX / 2, "not started", ha="center", va="center", color=ALARM, fontsize=FONT)
        return
    frame = {"edgecolor": ALARM, "linewidth": 2.5} if differ else {"linewidth": 0}
    axes.add_patch(Rectangle((middle - width / 2, top), width, BOX, facecolor=colour, **frame))
    widest = text_width(figure, text, FONT) / figure.dpi
    size = FONT * min(1.0, 0.92 * width / widest)
    axes.text(middle, top + BOX / 2, text, ha="center", va="center", color=ink_on(colour), fontsize=size)
