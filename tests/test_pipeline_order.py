"""The bubble of orders that can be computed by hand."""

import pytest

from ddp_course.lab.pipeline_order import order_bubble


def steps(*kinds_and_numbers):
    return [{"kind": kind, "number": number} for kind, number in kinds_and_numbers]


@pytest.mark.parametrize("ranks", (1, 2, 4))
@pytest.mark.parametrize("micro_batches", (1, 4, 8))
def test_gpipe_idles_as_the_formula_says(ranks, micro_batches):
    order = steps(*((kind, number) for kind in ("forward", "backward") for number in range(micro_batches)))
    assert order_bubble([order] * ranks) == pytest.approx((ranks - 1) / (micro_batches + ranks - 1))


def test_weights_fill_the_gap_that_a_full_backward_leaves():
    whole = [steps(("forward", 0), ("backward", 0))] * 2
    split = [steps(("forward", 0), ("input", 0), ("weights", 0))] * 2
    assert order_bubble(whole) == 1 - 6 / 12 and order_bubble(split) == 1 - 6 / 10
