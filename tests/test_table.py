"""A table in a notebook."""

import pytest

from ddp_course.lab.table import table

pytestmark = pytest.mark.smoke


def test_rows_become_a_table_under_their_names():
    shown = table([{"rank": 0, "gap": "0.1"}, {"rank": 1, "gap": "none"}])
    assert shown.data.splitlines() == ["| rank | gap |", "| --- | --- |", "| 0 | 0.1 |", "| 1 | none |"]
