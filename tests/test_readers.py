"""The picture of who reads which sample: a cell for each sample, a part of it for each reading."""

from collections import Counter

import pytest
from matplotlib import colors

from ddp_course.base.errors import InputError
from ddp_course.lab.figures.readers import who_reads
from ddp_course.lab.figures.style import rank_colour

pytestmark = pytest.mark.smoke


def readings(figure):
    """{(row, sample): the colours of its parts, from bottom to top}."""
    by_cell = {}
    for patch in figure.axes[0].patches:
        if patch.get_facecolor()[3]:
            cell = int(patch.get_y()), int(patch.get_x())
            by_cell.setdefault(cell, []).append((-patch.get_y(), colors.to_hex(patch.get_facecolor()).upper()))
    return {cell: [colour for _, colour in sorted(parts)] for cell, parts in by_cell.items()}


def test_each_reading_has_the_colour_of_its_rank():
    rows = {"epoch 0": {0: [0, 2], 1: [1, 2]}, "epoch 1": {0: [], 2: [3, 3]}}
    figure = who_reads(rows, 4, "Sample 2 is read twice")
    first, second, third = map(rank_colour, range(3))
    assert readings(figure) == {(0, 0): [first], (0, 1): [second], (0, 2): [first, second], (1, 3): [third] * 2}
    texts = Counter(text.get_text() for text in figure.axes[0].texts)
    assert texts == {"0": 2, "1": 2, "2": 2}
    assert figure.title == "Sample 2 is read twice"


def test_many_samples_get_no_numbers():
    figure = who_reads({"all": {0: range(200)}}, 200, "Rank 0 reads all")
    assert not figure.axes[0].texts and len(readings(figure)) == 200
    assert len(figure.axes[0].get_xticks()) <= 34


@pytest.mark.parametrize(
    ("rows", "message"), [({}, "at least one row"), ({"a": {1: [4]}}, "rank 1 reads sample 4 of 4 samples")]
)
def test_bad_input_is_named(rows, message):
    with pytest.raises(InputError, match=message):
        who_reads(rows, 4, "No picture")


def test_a_rank_that_waits_in_vain_is_hatched_and_reads_nothing_there():
    rows = {"ends": {0: [0], 1: [1]}, "hangs": {0: [0], 1: [1]}}
    figure = who_reads(rows, 4, "Rank 0 waits", stuck={"hangs": {0: 2}})
    hatched = [patch for patch in figure.axes[0].patches if patch.get_hatch()]
    assert [(int(patch.get_y()), int(patch.get_x())) for patch in hatched] == [(1, 2)]
    assert colors.to_hex(hatched[0].get_edgecolor()).upper() == rank_colour(0)
    assert (1, 2) not in readings(figure) and "hatched" in figure.axes[0].get_xlabel()
