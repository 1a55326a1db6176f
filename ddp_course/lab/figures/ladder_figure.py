"""Draw the equivalence ladder: each rung's measured gap and its tolerance, for every world size."""

import json
from pathlib import Path

from ddp_course.base.errors import InputError
from ddp_course.lab.figures.style import DARK, HIGHLIGHT, MUTED, PALE, new_figure

ROW = 0.235  # inches
MAX_NAMED = 3  # rungs that the title names
LOOKS = [("o", "white", 7.5), ("s", "#9CCBEB", 5.5), ("D", "#30475E", 4), ("^", "#009E73", 4), ("v", "#CC79A7", 4)]


def read_ladder(*paths: Path | str) -> list[dict]:
    """The records in files that ladder_ddp.py --out wrote, in one list.

    Raises InputError if a file is missing or a line of it is no record.
    """
    records = []
    for path in map(Path, paths):
        if not path.is_file():
            raise InputError(f"there is no file {path}; ladder_ddp.py --out {path} would write it")
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                record = json.loads(text)
                record["rung"], record["gap"], record["tolerance"], record["world_size"]
            except (ValueError, KeyError, TypeError):
                raise InputError(f"{path}, line {number}: expected a rung's record, found {text[:60]!r}") from None
            records.append(record)
    return records


def different_rungs(records: list[dict]) -> list[str]:
    """The names, sorted, of the rungs with a gap beyond its tolerance."""
    return sorted({record["rung"] for record in records if record["gap"] > record["tolerance"]})


def headline(records: list[dict]) -> str:
    """A sentence for the title: how many rungs are equal and bounded, and which are different.

    More than MAX_NAMED different rungs are only counted, and those named that were not expected to differ.
    """
    names = {record["rung"] for record in records}
    different = different_rungs(records)
    sizes = sorted({record["world_size"] for record in records})
    several = f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}" if len(sizes) > 1 else str(sizes[0])
    bounded = {record["rung"] for record in records if record.get("expected") == "bounded"} - set(different)
    middle = f", {len(bounded)} bounded" if bounded else ""
    end = f"; {' and '.join(different)} {'is' if len(different) == 1 else 'are'} different" if different else ""
    if len(different) > MAX_NAMED:
        unexpected = different_rungs([record for record in records if not record.get("as_expected")])
        expectation = f"not expected: {', '.join(unexpected)}" if unexpected else "as expected"
        end = f"; {len(different)} are different, {expectation}"
    equal = len(names) - len(different) - len(bounded)
    return f"{equal} of {len(names)} rungs are equal at {several} processes{middle}{end}"


def ladder(records: list[dict]):
    """A row for each rung, from the top in the order of the records; the gap on a log axis, the tolerance as a bar.

    records: from `read_ladder`. The title is their `headline`.
    A gap of exactly zero, which a log axis cannot show, is drawn in the column "0". A rung beyond its tolerance is
    highlighted, whether that was expected or not. Raises InputError if there are no records.
    """
    if not records:
        raise InputError("the ladder needs at least one record, got none")
    rungs = list({record["rung"]: record["topic"] for record in records}.items())
    different = different_rungs(records)
    sizes = sorted({record["world_size"] for record in records})
    numbers = [value for record in records for value in (record["gap"], record["tolerance"]) if 0 < value < 1e300]
    low, high = min(numbers, default=1e-17), max(numbers, default=1.0)
    zero, left, right = low / 100, low / 400, high * 30  # `zero`: the position of the column "0"

    figure, axes = new_figure(headline(records), 0.75 + ROW * len(rungs))
    axes.set(xscale="log", xlim=(left, right), ylim=(len(rungs) - 0.5, -1.1))
    axes.axvline(low / 14, color="#BDBDBD", linewidth=0.8, linestyle=":")
    for row, (name, topic) in enumerate(rungs):
        rung_records = [record for record in records if record["rung"] == name]
        if name in different:
            axes.axhspan(row - 0.5, row + 0.5, color="#FBE3D6", zorder=0)
        elif row % 2:
            axes.axhspan(row - 0.5, row + 0.5, color=PALE, alpha=0.55, zorder=0)
        tolerance = max(record["tolerance"] for record in rung_records)
        if tolerance > 0:
            axes.plot([tolerance] * 2, [row - 0.38, row + 0.38], color=DARK, linewidth=2.2, zorder=3)
        for record in rung_records:
            marker, face, size = LOOKS[sizes.index(record["world_size"]) % len(LOOKS)]
            face, edge = (HIGHLIGHT, HIGHLIGHT) if record["gap"] > record["tolerance"] else (face, DARK)
            position = min(max(record["gap"], zero), right / 3)
            colours = {"markerfacecolor": face, "markeredgecolor": edge}
            axes.plot(position, row, marker, markersize=size, markeredgewidth=0.9, zorder=5, **colours)
        if row == 0 or topic != rungs[row - 1][1]:
            axes.axhline(row - 0.5, color="#BDBDBD", linewidth=0.7)
            axes.text(1.01, row, topic, transform=axes.get_yaxis_transform(), va="center", color=MUTED, fontsize=8.5)
    axes.set_yticks(range(len(rungs)), [name for name, _ in rungs], fontsize=8.5, parse_math=False)
    for label, (name, _) in zip(axes.get_yticklabels(), rungs, strict=True):
        if name in different:
            label.set(color=HIGHLIGHT, fontweight="bold")
    axes.tick_params(axis="y", length=0)
    exponents = [e for e in range(-20, 6, 4) if low / 3 <= 10.0**e <= right]
    axes.set_xticks([zero, *(10.0**e for e in exponents)], ["0", *(f"1e{e}" for e in exponents)])
    axes.minorticks_off()
    axes.set_xlabel("largest distance between a weight of N processes and the same weight of one")
    _legend(axes, sizes)
    return figure


def _legend(axes, sizes: list[int]) -> None:
    marks = []
    for size, (marker, face, points) in zip(sizes, LOOKS, strict=False):
        name = f"{size} process{'es' * (size > 1)}"
        marks += axes.plot([], [], marker, markersize=points, markerfacecolor=face, markeredgecolor=DARK, label=name)
    marks += axes.plot([], [], "|", markersize=10, markeredgewidth=2.2, color=DARK, label="tolerance")
    axes.legend(
        handles=marks,
        ncols=len(marks),
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        frameon=False,
        fontsize=8.5,
        handletextpad=0.2,
        columnspacing=1.4,
    )
