"""Texts in a figure: the names of its rows, labels inside bars, and labels that must not overlap."""

from itertools import pairwise


def text_width(figure, text: str, size: float) -> float:
    """The width of `text` in pixels, in the figure's font at `size` points."""
    probe = figure.text(0, 0, text, fontsize=size)
    width = probe.get_window_extent().width
    probe.remove()
    return width


def name_rows(axes, names: list[str], top: float = -0.5) -> None:
    """Write the names of the rows 0, 1, ... on the left, the first on top, without ticks and without an axis line.

    top: the upper end of the axis, in rows.
    """
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(len(names) - 0.5, top)
    axes.tick_params(axis="y", length=0)
    axes.spines.left.set_visible(False)


def label_inside(axes, x: float, y: float, text: object, size: float, ink: str, **more) -> None:
    """Write a text centred at (x, y), the middle of a bar or a cell. more: arguments of `Axes.text`."""
    axes.text(x, y, text, ha="center", va="center_baseline", fontsize=size, color=ink, **more)


def spread_out(targets: list[float], heights: list[float], top: float) -> list[float]:
    """Centres near `targets` for labels of these heights, so that no two overlap and none extends above `top`.

    Of several labels with the same target, the first is the highest.
    """
    order = sorted(range(len(targets)), key=lambda i: (targets[i], -i))
    centres = list(targets)
    for below, above in pairwise(order):
        centres[above] = max(centres[above], centres[below] + (heights[below] + heights[above]) / 2)
    ceiling = top
    for label in reversed(order):
        centres[label] = min(centres[label], ceiling - heights[label] / 2)
        ceiling = centres[label] - heights[label] / 2
    return centres
