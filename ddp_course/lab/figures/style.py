"""The style of all figures: sizes, colours, and a Figure that a notebook shows exactly once."""

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
SHARPNESS = 2  # pixels of the file per pixel on the page, for screens of a high resolution
TITLE_CHARACTERS = 78  # a line of the title
TITLE_LINE = 0.24  # inches

# Masataka Okabe and Kei Ito, "Color Universal Design", in an order in which neighbouring ranks differ most.
# Grey replaces their black, because communication is drawn dark.
RANK_COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999"]
DARK = "#2B2B2B"
MUTED = "#6E6E6E"
PALE = "#EFEFEF"
NEUTRAL = "#7A8794"
HIGHLIGHT = "#D55E00"  # what the title speaks of, or what went wrong
ALARM = "#B3261E"  # a difference between ranks, or a kill
HATCHED = {"hatch": "////", "edgecolor": "#C2C2C2"}  # of a bar in which a process only waits or starts


def rank_colour(rank: int) -> str:
    """The colour of `rank`, as "#RRGGBB": the same in every figure of the course.

    Ranks 8 to 15 have the first eight colours in a paler tone; from 16 on the sixteen colours repeat.
    Raises InputError if `rank` is not a whole number from 0 up.
    """
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
        raise InputError(f"A rank is a whole number from 0 up, got {rank!r}.")
    base = RANK_COLOURS[rank % 8]
    return mix([base, "#FFFFFF"], [0.5, 0.5]) if rank // 8 % 2 else base


def colour_named(label: str, otherwise: str) -> str:
    """The colour of rank 3 for the label "rank 3", and `otherwise` for a label that names no rank."""
    match = re.fullmatch(r"rank (\d+)", str(label))
    return rank_colour(int(match[1])) if match else otherwise


def mix(colours: list[str], weights: list[float]) -> str:
    """The weighted average of colours, in RGB."""
    parts = [colors.to_rgb(colour) for colour in colours]
    mixed = [sum(w * part[i] for w, part in zip(weights, parts, strict=True)) for i in range(3)]
    return colors.to_hex([min(1.0, value / sum(weights)) for value in mixed]).upper()


def ink_on(background: str) -> str:
    """The colour for text on `background`: DARK or white, whichever has more contrast (WCAG 2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colors.to_rgb(background)]
    luminance = sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "white" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.074 else DARK


class CourseFigure(Figure):
    """A matplotlib Figure without pyplot, so that it is not shown a second time and needs no display.

    As the last expression of a cell it is shown as a PNG whose alternative text is its title.
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
    """The pictures reduced to the 256 most frequent colours of all of them; other colours become the nearest of these.

    That is enough for lines and text on white, and the file has a third of the bytes.
    """
    numbers = [np.asarray(picture, dtype=np.int32) @ np.int32([1 << 16, 1 << 8, 1]) for picture in pictures]
    colours_used, counts = np.unique(np.concatenate([picture.ravel() for picture in numbers]), return_counts=True)
    palette = channels(colours_used[np.argsort(counts, kind="stable")[-256:]])
    nearest = ((channels(colours_used)[:, None] - palette) ** 2).sum(axis=2).argmin(axis=1).astype(np.uint8)
    reduced = [Image.fromarray(nearest[np.searchsorted(colours_used, picture)]) for picture in numbers]
    for picture in reduced:
        picture.putpalette(palette.astype(np.uint8).tobytes())
    return reduced


def channels(numbers: np.ndarray) -> np.ndarray:
    """Red, green and blue, (n, 3), of n colours that are numbers such as 0xRRGGBB."""
    return np.stack([numbers >> 16, numbers >> 8 & 255, numbers & 255], axis=1)


def new_figure(title: str, height: float, **subplots):
    """A figure `WIDTH` inches wide with `title` on top, and its axes, as (figure, axes).

    height: inches below the title. subplots: arguments of `Figure.subplots` (nrows, sharex, gridspec_kw, ...).
    Raises InputError if the title is empty.
    """
    if not isinstance(title, str) or not title.strip():
        raise InputError(f"A figure needs a title that states what it shows, got {title!r}.")
    lines = [line for part in title.splitlines() for line in wrap_evenly(part)]
    figure = CourseFigure(figsize=(WIDTH, height + TITLE_LINE * len(lines)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.title = title
    figure.suptitle("\n".join(lines), x=0.012, ha="left", parse_math=False)  # a "$" in a title is a dollar
    figure.get_layout_engine().set(w_pad=0.09, h_pad=0.06)
    return figure, figure.subplots(**subplots)


def wrap_evenly(text: str) -> list[str]:
    """`text` in as few lines of a title as hold it, of about equal length."""
    fewest = len(textwrap.wrap(text, TITLE_CHARACTERS))
    return next(lines for width in range(1, TITLE_CHARACTERS + 1) if len(lines := textwrap.wrap(text, width)) <= fewest)


def new_canvas(title: str, height: float):
    """A figure and its axes without a frame, in inches: x from 0 to WIDTH, y from 0 at the top to `height`."""
    figure, axes = new_figure(title, height)
    figure.set_layout_engine("none")
    axes.set_position((0, 0, 1, height / figure.get_figheight()))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")
    return figure, axes
