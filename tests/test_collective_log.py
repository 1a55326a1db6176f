"""The first difference of two logs of collectives. Notebook 12 asserts that the log shows what gloo does not raise."""

from ddp_course.distributed.collective_log import first_difference


def test_a_longer_log_differs_where_the_shorter_one_ends():
    assert first_difference([[["barrier", [], 1]], []]) == 0
    assert first_difference([[], []]) is None
