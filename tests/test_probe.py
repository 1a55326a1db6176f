"""Numbers read from what a script printed."""

from types import SimpleNamespace

import pytest

from ddp_course.base.errors import InputError
from ddp_course.lab.probe import printed

pytestmark = pytest.mark.smoke

LINES = ["3 tokens", "step 1  loss 5.25  gradient norm 7", "step 1  validation loss 5.5", "step 12  loss nan"]
RUN = SimpleNamespace(lines={0: LINES, 1: []})


def test_each_name_has_its_own_numbers():
    losses_by_step = printed(RUN, "loss")
    assert losses_by_step[1] == 5.25 and losses_by_step[12] != losses_by_step[12] and len(losses_by_step) == 2
    assert printed(RUN, "gradient norm") == {1: 7.0}
    assert printed(RUN, "validation loss") == {1: 5.5}


def test_nothing_printed_is_an_error_that_says_what_there_was():
    with pytest.raises(InputError, match="rank 1 printed no line like 'step 1  loss"):
        printed(RUN, "loss", rank=1)
    with pytest.raises(InputError, match="3 tokens"):
        printed(RUN, "accuracy")
