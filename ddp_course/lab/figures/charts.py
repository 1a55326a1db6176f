"""Charts of numbers: loss curves from run directories, and bars."""

import math
import textwrap
from collections.abc import Collection
from pathlib import Path

from ddp_course.base.errors import InputError
from ddp_course.base.json_file import parse
from ddp_course.base.quantity import format_number, is_number, plain
from ddp_course.lab.figures.labels import name_rows, spread_out
from ddp_course.lab.figures.style import DARK, HIGHLIGHT, NEUTRAL, colour_named, new_figure

ONE_CURVE = {"color": "#30475E", "linewidth": 2.0, "linestyle": "-"}
# The first is thick and pale, later ones are thin and dark, so that two curves that coincide are both visible.
CURVES = [
    {"color": "#9CCBEB", "linewidth": 6.0, "linestyle": "-"},
    {"color": HIGHLIGHT, "linewidth": 2.6, "linestyle": "-"},
    {"color": "#111111", "linewidth": 1.3, "linestyle": (0, (5, 3))},
    {"color": "#009E73", "linewidth": 1.6, "linestyle": (0, (1, 1.6))},
    {"color": "#CC79A7", "linewidth": 1.6, "linestyle": (0, (6, 2, 1, 2))},
]
MARKERS = [("o", 9), ("D", 5.5), ("x", 5), ("s", 4.5), ("^", 4.5)]
AXIS_NAMES = {"tokens_per_s": "tokens per second", "grad_norm": "gradient norm"}


def read_metrics(run_dir: Path | str) -> list[dict]:
    """The records of `run_dir`/metrics.jsonl, in the order in which they were written.

    An incomplete last line is left out: the run was killed while it wrote it.
    Raises InputError if there is no such file, it holds no record, or a line is not a JSON object.
    """
    path = Path(run_dir) / "metrics.jsonl"
    if not path.is_file():
        raise InputError(f"{run_dir} is not a run directory: it should hold metrics.jsonl, and does not.")
    text = path.read_bytes()
    lines = text.splitlines()
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = parse(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            if number == len(lines) and not text.endswith(b"\n"):
                break
            start_of_line = line[:60].decode("utf-8", errors="replace")
            raise InputError(f"{path}, line {number}: expected one JSON object, found {start_of_line!r}.")
        records.append(record)
    if not records:
        raise InputError(f"{path} holds no finished record: the run ended before its first logged step.")
    return records


def points_of(name: str, records: list[dict], key: str) -> tuple[list, list]:
    """The steps, sorted, and the values of `key` there. If a resumed run logged a step again, its last value counts.

    Raises InputError if no record has the key and a step, except for "val_loss". `name` is the curve's in the message.
    """
    values = {r["step"]: float(r[key]) for r in records if is_number(r.get("step")) and is_number(plain(r.get(key)))}
    steps = sorted(values)
    if not steps and key != "val_loss":
        keys = sorted({k for r in records for k in r})
        raise InputError(f"The curve {name!r} needs records with 'step' and {key!r}; its keys are {keys}.")
    return steps, [values[step] for step in steps]


def loss_curves(curves: dict, title: str, *, key: str = "loss", gap: bool = False):
    """One line for each run over its optimizer steps, with its validation losses as markers.

    curves: name -> run directory (its metrics.jsonl is read) or list of records: dicts with "step" and `key`
        (training), or "step" and "val_loss" (validation, drawn only for key="loss").
    key: the value to draw: "loss", "learning_rate", "grad_norm", "tokens_per_s", ...
    gap: below, each later curve minus the first, at the steps that both have: curves that coincide show no difference.
    Raises InputError if there are no curves, or one has no record with "step" and `key`.
    """
    if not curves:
        raise InputError("loss_curves needs at least one curve, got none.")
    panels = {"nrows": 2, "sharex": True, "height_ratios": [3, 1]} if gap else {}
    figure, axes = new_figure(title, 3.4, **panels)
    axes, lower = axes if gap else (axes, axes)
    looks, ends, lines, has_validation = [], [], {}, False
    for i, (name, source) in enumerate(curves.items()):
        records = source if isinstance(source, list) else read_metrics(source)
        steps, values = points_of(name, records, key)
        look = dict(CURVES[i % len(CURVES)] if len(curves) > 1 else ONE_CURVE)
        look["color"] = colour_named(name, look["color"])
        lines[name] = dict(zip(steps, values, strict=True))
        marker = "o" if len(steps) == 1 else None
        axes.plot(steps, values, marker=marker, zorder=2 + i, solid_capstyle="round", **look)
        ends.append(next((value for value in reversed(values) if math.isfinite(value)), 0.0))

        steps, values = points_of(name, records, "val_loss") if key == "loss" else ([], [])
        if steps:
            has_validation = True
            marker, size = MARKERS[i % len(MARKERS)] if len(curves) > 1 else ("o", 6)
            # A pale marker needs an edge to be seen; "x" has no face, so its edge is its colour.
            edge = look["color"] if marker == "x" else DARK
            mark = {"marker": marker, "markersize": size, "markeredgecolor": edge}
            axes.plot(steps, values, linestyle="", zorder=20 + i, color=look["color"], **mark)
            look.update(mark)
        looks.append(look)
    if gap:
        _draw_gaps(lower, lines, [look["color"] for look in looks])
    lower.set_xlabel("optimizer step")
    axes.set_ylabel(AXIS_NAMES.get(key, key.replace("_", " ")) + (" (marks: validation)" if has_validation else ""))
    axes.grid(axis="y")
    _label_ends(figure, axes, list(curves), looks, ends)
    return figure


def _draw_gaps(axes, lines: dict[str, dict], colours: list[str]) -> None:
    """Dots for each later line minus the first. lines: name -> step -> value."""
    (name, first), *others = lines.items()
    for (_, line), colour in zip(others, colours[1:], strict=True):
        shared = [step for step in line if step in first]
        axes.plot(shared, [line[step] - first[step] for step in shared], ".", color=colour, markersize=4)
    axes.set_title(f"minus {name}", loc="left", fontsize=8.5, fontweight="normal")


def _label_ends(figure, axes, names: list[str], looks: list[dict], ends: list[float]) -> None:
    """Write each curve's name, with a sample of its line, to the right of the curve's end."""
    figure.draw_without_rendering()  # settles the layout, so that heights in pixels are known
    box = axes.get_window_extent()
    targets = [(axes.transData.transform((0, end))[1] - box.y0) / box.height for end in ends]
    texts = [textwrap.fill(str(name), 24) for name in names]
    heights = [(14 * text.count("\n") + 18) / box.height for text in texts]
    for look, text, y in zip(looks, texts, spread_out(targets, heights, 1.0), strict=True):
        sample = {"transform": axes.transAxes, "clip_on": False, "solid_capstyle": "butt", **look}
        axes.plot([1.02, 1.045, 1.07], [y] * 3, markevery=[1], **sample)
        axes.text(1.085, y, text, transform=axes.transAxes, va="center", color=DARK, parse_math=False)


def bars(values: dict, title: str, unit: str, highlight: Collection[str] = ()):
    """Horizontal bars, in the given order from the top, each with its value to the right.

    values: name -> value, or name -> (value, spread), drawn as value ± spread, both in `unit`.
    highlight: names of the bars that the title speaks of.
    A bar named "rank 3" has that rank's colour. Raises InputError if there are no values or one is no number.
    """
    if not values:
        raise InputError("bars needs at least one value, got none.")
    figure, axes = new_figure(title, 0.55 + 0.4 * len(values))
    for row, (name, value) in enumerate(values.items()):
        middle, spread = value if isinstance(value, (tuple, list)) and len(value) == 2 else (value, None)
        middle, spread = plain(middle), plain(spread)
        if not is_number(middle) or not (spread is None or is_number(spread)):
            raise InputError(f"The bar {name!r} needs a number or (value, spread), got {value!r}.")
        axes.barh(row, middle, height=0.62, color=colour_named(name, HIGHLIGHT if name in highlight else NEUTRAL))
        text = format_number(middle)
        if spread is not None:
            axes.errorbar(middle, row, xerr=spread, color=DARK, capsize=3, linewidth=1.2)
            text += f" ± {format_number(spread)}"
        # A negative bar, too, has its text on the right, because its name is on the left.
        end = (max(0.0, middle + (spread or 0)), row)
        offset = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(f"{text} {unit}".rstrip(), end, color=DARK, **offset)
    name_rows(axes, [textwrap.fill(str(name), 30) for name in values])
    axes.xaxis.set_visible(False)
    axes.spines.bottom.set_visible(False)
    axes.axvline(0, color="#8A8A8A", linewidth=0.8)
    return figure
