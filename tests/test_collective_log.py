"""Where two logs of collectives part; that gloo raises nothing there, and the log shows it, notebook 12 asserts."""

from ddp_course.distributed.collective_log import first_difference


def test_a_log_that_goes_on_differs_where_the_other_one_ends():
    assert first_difference([[["barrier", [], 1]], []]) == 0
    assert first_difference([[], []]) is None
