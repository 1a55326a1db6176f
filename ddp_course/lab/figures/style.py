"""The one look of every figure: sizes, colours, and how a figure reaches a notebook exactly once."""

import io
import re
import textwrap
from pathlib import Path

import numpy as np
from matplotlib import colors, style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from ddp_course.base.errors import InputError

style.use(Path(__file__).with_name("course.mplstyle"))

WIDTH = 7.5  # inches, of every figure: 750 pixels on the page
SHARPNESS = 2  # pixels of the file for each of them: screens of a high resolution show more than one
TITLE_CHARACTERS = 78  # a line of the title
TITLE_LINE = 0.24  # inches

# Masataka Okabe and Kei Ito, "Color Universal Design", in an order that keeps neighbouring ranks far apart.
# Their black is left out (communication is drawn dark); their grey variant stands in for it.
RANK_COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999"]
DARK = "#2B2B2B"
MUTED = "#6E6E6E"
PALE = "#EFEFEF"
NEUTRAL = "#7A8794"


def rank_colour(rank: int) -> str:
    """The colour of `rank`, as "#RRGGBB": the same in every figure of the course.

    Ranks 8 to 15 repeat the first eight in a paler tone; from 16 on the sixteen repeat.
    Raises InputError if `rank` is not a whole number from 0 up.
    """
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
        raise InputError(f"A rank is a whole number from 0 up, got {rank!r}.")
    base = RANK_COLOURS[rank % 8]
    return mix([base, "#FFFFFF"], [0.5, 0.5]) if rank // 8 % 2 else base


def colour_named(label: str, otherwise: str) -> str:
    """The rank's colour where a label is "rank 3", `otherwise` for every other label."""
    match = re.fullmatch(r"rank (\d+)", str(label))
    return rank_colour(int(match[1])) if match else otherwise


def mix(colours: list[str], weights: list[float]) -> str:
    """The weighted average of colours, in RGB."""
    parts = [colors.to_rgb(colour) for colour in colours]
    mixed = [sum(w * part[i] for w, part in zip(weights, parts, strict=True)) for i in range(3)]
    return colors.to_hex([min(1.0, value / sum(weights)) for value in mixed]).upper()


def ink_on(background: str) -> str:
    """Dark or white, whichever reads better on `background` (WCAG 2 contrast)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colors.to_rgb(background)]
    luminance = sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "white" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.074 else DARK


class CourseFigure(Figure):
    """A matplotlib Figure outside pyplot: nothing is drawn twice, no window opens, no display is needed.

    As the last expression of a cell it shows itself once, as a PNG whose alternative text is its title.
    """

    def _repr_png_(self):
        [picture], buffer = in_few_colours([self.drawn()]), io.BytesIO()
        picture.save(buffer, "PNG", optimize=True)
        return buffer.getvalue(), self.on_the_page()

    def drawn(self) -> Image.Image:
        """The picture, with `SHARPNESS` times as many pixels each way as it takes on the page."""
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=SHARPNESS * self.dpi)
        return Image.open(buffer).convert("RGB")

    def on_the_page(self) -> dict:
        """The metadata of the picture in a notebook: its alternative text and its size on the page."""
        width, height = (round(self.dpi * inches) for inches in self.get_size_inches())
        return {"alt": self.title, "width": width, "height": height}

    def __repr__(self):
        return f"Figure: {self.title}"


def in_few_colours(pictures: list[Image.Image]) -> list[Image.Image]:
    """The pictures in the 256 most frequent colours of them all; any other becomes the nearest of these.

    Lines and text on white need no more, and the file has a third of the bytes.
    """
    numbers = [np.asarray(picture, dtype=np.int32) @ np.int32([1 << 16, 1 << 8, 1]) for picture in pictures]
    colours_used, counts = np.unique(np.concatenate([picture.ravel() for picture in numbers]), return_counts=True)
    kept = parts_of(colours_used[np.argsort(counts, kind="stable")[-256:]])
    nearest = ((parts_of(colours_used)[:, None] - kept) ** 2).sum(axis=2).argmin(axis=1).astype(np.uint8)
    reduced = [Image.fromarray(nearest[np.searchsorted(colours_used, picture)]) for picture in numbers]
    for picture in reduced:
        picture.putpalette(kept.astype(np.uint8).tobytes())
    return reduced


def parts_of(numbers: np.ndarray) -> np.ndarray:
    """Red, green and blue of colours that are written as one number."""
    return np.stack([numbers >> 16, numbers >> 8 & 255, numbers & 255], axis=1)


def new_figure(title: str, height: float, **subplots):
    """A figure `WIDTH` inches wide with `title` on top, and its axes.

    height: inches below the title. subplots: what `Figure.subplots` takes (nrows, sharex, gridspec_kw, ...).
    Raises InputError if the title is empty: a figure of this course says what it shows.
    """
    if not isinstance(title, str) or not title.strip():
        raise InputError(f"A figure needs a title that states what it shows, got {title!r}.")
    lines = [line for part in title.splitlines() for line in textwrap.wrap(part, TITLE_CHARACTERS)]
    figure = CourseFigure(figsize=(WIDTH, height + TITLE_LINE * len(lines)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.title = title
    figure.suptitle("\n".join(lines), x=0.012, ha="left", parse_math=False)  # a "$" in a title is a dollar
    figure.get_layout_engine().set(w_pad=0.09, h_pad=0.06)
    return figure, figure.subplots(**subplots)


def text_width(figure, text: str, size: float) -> float:
    """The width of `text` in pixels, in the figure's font at `size` points."""
    probe = figure.text(0, 0, text, fontsize=size)
    width = probe.get_window_extent().width
    probe.remove()
    return width


def label_inside(axes, x: float, y: float, text: object, size: float, ink: str, **more) -> None:
    """Write a text in the middle of a bar or a cell. more: what `Axes.text` takes."""
    axes.text(x, y, text, ha="center", va="center_baseline", fontsize=size, color=ink, **more)


def spread_out(wanted: list[float], heights: list[float], high: float) -> list[float]:
    """Centres near `wanted` for labels of these heights: none touch and, if there is room, none passes `high`.

    If several labels want the same height, the first comes on top.
    """
    order = sorted(range(len(wanted)), key=lambda i: (wanted[i], -i))
    placed = list(wanted)
    for below, this in zip(order, order[1:], strict=False):
        placed[this] = max(placed[this], placed[below] + (heights[below] + heights[this]) / 2)
    ceiling = high
    for this in reversed(order):
        placed[this] = min(placed[this], ceiling - heights[this] / 2)
        ceiling = placed[this] - heights[this] / 2
    return placed
