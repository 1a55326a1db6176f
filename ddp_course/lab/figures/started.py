"""Draw the collectives that each rank had started when a job hung: who is ahead, and where they differ."""

from matplotlib.patches import Rectangle

from ddp_course.base.errors import InputError
from ddp_course.lab.figures.style import DARK, MUTED, WIDTH, ink_on, new_figure, rank_colour, text_width

LABELS, MARGIN, GAP = 0.75, 0.12, 0.08  # inches
HEAD, BOX, LANE = 0.28, 0.36, 0.82  # inches: the numbers, a box, a rank with the line below it
FONT = 9  # points
ODD = "#B3261E"  # the frame of what not all ranks have started


def collectives_started(started: dict, then: dict, title: str, last: int = 5):
    """One lane a rank, one column a number: the last `last` numbers, and below each lane where its rank stands.

    started: rank -> its collectives in order, as text such as "all-reduce [4]"
    then: rank -> what it does after the last of them, as text
    Where the ranks have not all started the same, boxes are framed, and a rank that has started nothing has a gap.
    Raises InputError if there is no rank.
    """
    if not started:
        raise InputError("collectives_started needs at least one rank, got none.")
    ranks, most = sorted(started), max(len(texts) for texts in started.values())
    first, columns = max(0, most - last), max(1, min(most, last))
    height = HEAD + LANE * len(ranks)
    figure, axes = new_figure(title, height)
    figure.set_layout_engine("none")
    axes.set_position((0, 0, 1, height / figure.get_figheight()))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))  # one unit is one inch
    axes.axis("off")
    width = (WIDTH - LABELS - MARGIN) / columns
    for column in range(columns):
        middle = LABELS + (column + 0.5) * width
        axes.text(middle, HEAD / 2, f"{first + column + 1}", ha="center", va="center", color=MUTED, fontsize=FONT)
        at_this = {rank: _at(started[rank], first + column) for rank in ranks}
        odd = len(set(at_this.values())) > 1
        for row, rank in enumerate(ranks):
            _draw(figure, axes, at_this[rank], middle, HEAD + row * LANE, width - GAP, rank_colour(rank), odd)
    for row, rank in enumerate(ranks):
        top = HEAD + row * LANE
        axes.text(LABELS - 0.12, top + BOX / 2, f"rank {rank}", ha="right", va="center", color=DARK)
        axes.text(LABELS + GAP / 2, top + BOX + 0.17, then.get(rank, ""), va="center", color=DARK, fontsize=FONT)
    return figure


def _at(texts: list[str], index: int) -> str | None:
    return texts[index] if 0 <= index < len(texts) else None


def _draw(figure, axes, text, middle, top, width, colour, odd):
    if text is None:
        axes.text(middle, top + BOX / 2, "not started", ha="center", va="center", color=ODD, fontsize=FONT)
        return
    frame = {"edgecolor": ODD, "linewidth": 2.5} if odd else {"linewidth": 0}
    axes.add_patch(Rectangle((middle - width / 2, top), width, BOX, facecolor=colour, **frame))
    widest = text_width(figure, text, FONT) / figure.dpi
    size = FONT * min(1.0, 0.92 * width / widest)
    axes.text(middle, top + BOX / 2, text, ha="center", va="center", color=ink_on(colour), fontsize=size)
