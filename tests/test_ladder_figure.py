"""The ladder's picture: its records, its title, and the colour of a rung beyond its tolerance."""

import json

import pytest

from ddp_course.base.errors import InputError
from ddp_course.lab.figures.ladder_figure import headline, ladder, read_ladder
from ddp_course.lab.figures.style import HIGHLIGHT

pytestmark = pytest.mark.smoke


def record(rung, gap, world_size=2, tolerance=1e-10):
    return {"rung": rung, "topic": "the batch", "world_size": world_size, "gap": gap, "tolerance": tolerance}


RECORDS = [
    record("plain", 0.0, 1),
    record("plain", 3e-17),
    record("norm", 0.0, 1),
    record("norm", 1e-2),
    record("far", 1e-12),
]


def marks(figure):
    """(x, row, face colour) of every drawn gap."""
    lines = [line for line in figure.axes[0].lines if line.get_marker() in "osD" and len(line.get_xdata()) == 1]
    return [(line.get_xdata()[0], line.get_ydata()[0], line.get_markerfacecolor()) for line in lines]


def test_a_row_for_each_rung_and_a_mark_for_each_record():
    figure = ladder(RECORDS)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["plain", "norm", "far"]
    assert [row for _, row, _ in marks(figure)] == [0, 0, 1, 1, 2]
    zero, some = (x for x, row, _ in marks(figure) if row == 0)
    assert zero < some == 3e-17, "an exact zero has a column of its own, left of everything"


def test_a_rung_beyond_its_tolerance_stands_out():
    figure = ladder(RECORDS)
    assert [row for _, row, face in marks(figure) if face == HIGHLIGHT] == [1]
    coloured = [label.get_text() for label in figure.axes[0].get_yticklabels() if label.get_color() == HIGHLIGHT]
    assert coloured == ["norm"]
    assert headline(RECORDS) == "2 of 3 rungs are equal at 1 and 2 processes; norm is different"


def test_a_bounded_rung_is_not_counted_as_equal():
    bounded = record("bf16", 1e-3, tolerance=1e-2) | {"expected": "bounded"}
    assert headline([*RECORDS, bounded]) == "2 of 4 rungs are equal at 1 and 2 processes, 1 bounded; norm is different"


def test_many_mistakes_are_counted_in_the_title():
    """Each is a rung that is expected to differ; one that differs unexpectedly is named."""
    mistakes = [record(f"mistake {number}", 1e-2) | {"as_expected": True} for number in range(4)]
    assert headline([*RECORDS[:2], *mistakes]).endswith("at 1 and 2 processes; 4 are different, as expected")
    mistakes[2]["as_expected"] = False
    assert headline([*RECORDS[:2], *mistakes]).endswith("4 are different, not expected: mistake 2")


@pytest.mark.parametrize("gap", [float("inf"), 1e9])
def test_a_huge_gap_stays_inside_the_frame(gap):
    figure = ladder([record("broken", gap)])
    [(x, _, face)] = marks(figure)
    assert x <= figure.axes[0].get_xlim()[1] and face == HIGHLIGHT


def test_records_are_read_from_several_files(tmp_path):
    for number in (1, 2):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps(record("plain", 0.0, number)) + "\n")
    assert [r["world_size"] for r in read_ladder(tmp_path / "1.jsonl", tmp_path / "2.jsonl")] == [1, 2]


@pytest.mark.parametrize("text", ["{", '{"rung": "plain"}', "[1]"])
def test_a_line_that_is_no_record_is_named(text, tmp_path):
    (tmp_path / "l.jsonl").write_text(text + "\n")
    with pytest.raises(InputError, match="line 1: expected a rung's record"):
        read_ladder(tmp_path / "l.jsonl")


def test_a_missing_file_and_an_empty_ladder_are_named(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        read_ladder(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="at least one record"):
        ladder([])
