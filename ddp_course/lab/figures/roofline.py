"""The roofline: the FLOP/s that a machine can reach at each arithmetic intensity, and those that were achieved."""

import math

from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ddp_course.base.errors import InputError
from ddp_course.base.quantity import format_number, is_number, with_prefix
from ddp_course.lab.figures.style import DARK, MUTED, new_figure, rank_colour

# Where a point's label may go, as an offset in points and the end of the text nearest to the point; best first.
ANCHORS = [(8, 0, "left"), (-8, 0, "right")]
ANCHORS += [(x, y, side) for y in (-16, 16, -32, 32, -48, 48) for x, side in ((12, "left"), (-12, "right"))]


def roofline(peak_flops_per_s: float, bytes_per_s: float, points: dict, title: str):
    """The roof of a machine and the achieved FLOP/s, on two log axes.

    bytes_per_s: the memory bandwidth; points: name -> (FLOP per byte, achieved FLOP/s).
    Each point's label gives its share of the roof at its intensity, min(peak, intensity x bandwidth).
    Method: Williams, Waterman and Patterson, "Roofline", Communications of the ACM 52(4), 2009.
    Raises InputError if a number is not positive.
    """
    numbers = [peak_flops_per_s, bytes_per_s, *(number for point in points.values() for number in point)]
    if not all(is_number(n) and 0 < n < math.inf for n in numbers):
        raise InputError(f"A roofline has log axes and needs positive, finite numbers; got {numbers}.")
    ridge = peak_flops_per_s / bytes_per_s
    xs, ys = [ridge, *(x for x, _ in points.values())], [peak_flops_per_s, *(y for _, y in points.values())]
    left, right = min(xs) / 8, max(xs) * 8
    low, high = min([left * bytes_per_s, *(y / 2 for y in ys)]), max(ys) * 3

    figure, axes = new_figure(title, 3.7)
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(low, high), xlabel="FLOP per byte moved")
    _ticks(axes.xaxis, math.log10(right / left), format_number)
    _ticks(axes.yaxis, math.log10(high / low), lambda value: with_prefix(value, "FLOP/s"))
    axes.plot([left, ridge, right], [left * bytes_per_s, peak_flops_per_s, peak_flops_per_s], color=DARK, lw=2)
    axes.plot([ridge, ridge], [low, peak_flops_per_s], color="#BDBDBD", linestyle=":", zorder=1)
    for i, (x, y) in enumerate(points.values()):
        axes.plot(x, y, "o", markersize=8, color=rank_colour(i), markeredgecolor="white", zorder=5)

    figure.draw_without_rendering()  # settles the layout, so that positions in pixels are known
    above = {"textcoords": "offset points", "color": MUTED}
    roof = f"peak {with_prefix(peak_flops_per_s, 'FLOP/s')}"
    peak = axes.annotate(roof, (right, peak_flops_per_s), (-4, 5), ha="right", **above)
    (x0, y0), (x1, y1) = axes.transData.transform([(left, left * bytes_per_s), (ridge, peak_flops_per_s)])
    angle = math.atan2(y1 - y0, x1 - x0)
    middle, off = math.sqrt(left * ridge), (-5 * math.sin(angle), 5 * math.cos(angle))
    slope = {"rotation": math.degrees(angle), "rotation_mode": "anchor", "ha": "center"}
    axes.annotate(f"memory {with_prefix(bytes_per_s, 'B/s')}", (middle, middle * bytes_per_s), off, **slope, **above)
    _label_points(axes, points, lambda x: min(peak_flops_per_s, x * bytes_per_s), [peak.get_window_extent()])
    return figure


def _ticks(axis, decades: float, name) -> None:
    """Ticks at powers of ten, on a short axis also at 2 and 5 times them. name: the label of a value."""
    axis.set_major_locator(LogLocator(subs=(1,) if decades > 2.5 else (1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: name(value)))
    axis.set_minor_formatter(NullFormatter())


def _label_points(axes, points: dict, roof, text_boxes: list) -> None:
    """Write each point's name and share of its roof, at the first of ANCHORS that covers no label, point or roof.

    If each covers one, at the last. roof: FLOP per byte -> the FLOP/s that can be reached there. text_boxes: the boxes
    of other texts, in pixels; those of the labels are added.
    """
    frame, to_data = axes.get_window_extent(), axes.transData.inverted()
    marks = {name: axes.transData.transform(point) for name, point in points.items()}
    look = {"textcoords": "offset points", "va": "center", "color": DARK, "parse_math": False}
    look["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # the ridge line ends at a label
    for name, (x, y) in points.items():
        text = f"{name}: {100 * y / roof(x):.0f} % of its roof"
        for anchor in ANCHORS:
            near = (0.0 if anchor[2] == "left" else 1.0, 0.5)  # the end of the text where its leader starts
            leader = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.8, "relpos": near, "shrinkA": 0}
            label = axes.annotate(text, (x, y), anchor[:2], ha=anchor[2], arrowprops=leader, **look)
            label.update_positions(axes.figure.canvas.get_renderer())
            box = Text.get_window_extent(label).padded(2)  # of the text, without its leader
            (left, top), (right, bottom) = to_data.transform([(box.x0, box.y1), (box.x1, box.y0)])
            # The roof never falls, so one corner shows whether the whole label is on its point's side of it.
            off_roof = top <= roof(left) if y <= roof(x) else bottom >= roof(right)
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            covers_point = any(box.padded(6).contains(*mark) for other, mark in marks.items() if other != name)
            covers_text = any(box.overlaps(other) for other in text_boxes)
            if inside and off_roof and not covers_point and not covers_text:
                break
            if anchor != ANCHORS[-1]:
                label.remove()
        text_boxes.append(box)
