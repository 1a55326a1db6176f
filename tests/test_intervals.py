"""The intervals and tests of comparisons, against published tables and against sums by hand."""

import random

import numpy as np
import pytest

from ddp_course.base.intervals import (
    cluster_interval,
    holm,
    mcnemar,
    student_p,
    student_quantile,
    t_interval,
    wilson_interval,
)

pytestmark = pytest.mark.smoke


def test_student_quantiles_against_the_printed_table():
    """Abramowitz and Stegun (1964), table 26.10: two-sided 95 %, and 99 % for 5 degrees of freedom."""
    for freedom, expected in ((1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (10, 2.228), (120, 1.980)):
        assert student_quantile(freedom) == pytest.approx(expected, abs=5e-4)
    assert student_p(4.032, 5) == pytest.approx(0.01, abs=1e-5)
    assert student_p(-2.776, 4) == pytest.approx(0.05, abs=1e-4) and student_p(0, 3) == 1


def test_t_interval_of_three_seeds_by_hand():
    """Mean 2 and standard deviation 1: the half width is 4.303 / sqrt(3), and t is 2 sqrt(3), with p from the sine."""
    estimate = t_interval([1, 2, 3])
    assert estimate[:3] == pytest.approx((2, 2 - 2.4841, 2 + 2.4841), abs=1e-4)
    assert estimate.p == pytest.approx(1 - (12 / 14) ** 0.5, abs=1e-9)
    assert t_interval([2, 2]).p == 0 and t_interval([0, 0]).p == 1
    assert f"{estimate:+.1f}" == "+2.0 (-0.5 to +4.5)"


def test_the_interval_of_a_mean_holds_it_in_95_of_100_experiments():
    draw = random.Random(1)
    for count in (2, 5, 10):
        intervals = (t_interval([draw.gauss(3, 2) for _ in range(count)])[1:3] for _ in range(1000))
        assert sum(low < 3 < high for low, high in intervals) / 1000 == pytest.approx(0.95, abs=0.03)


def test_wilson_interval_against_published_values():
    """Newcombe, "Two-sided confidence intervals for the single proportion" (1998), table I, method 3."""
    table = (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611), (1, 29, 0.0061, 0.1718)
    for successes, count, low, high in table:
        assert wilson_interval(successes, count) == pytest.approx((low, high), abs=1e-4)


def test_copies_of_an_item_in_its_cluster_do_not_narrow_the_interval():
    values = np.random.default_rng(2).normal(0.2, 1, size=60)
    items = cluster_interval(values, range(60))
    error = values.std(ddof=1) / 60**0.5
    assert items.mean == pytest.approx(values.mean())
    assert items.high - items.low == pytest.approx(2 * 1.96 * error, rel=0.06)
    copies = cluster_interval(np.repeat(values, 10), [f"file {n}" for n in range(60) for _ in range(10)])
    assert copies == pytest.approx(items)
    careless = cluster_interval(np.repeat(values, 10), range(600))
    assert careless.high - careless.low < 0.4 * (copies.high - copies.low)


def test_a_cluster_interval_tells_an_effect_from_none():
    assert cluster_interval([1.0, 1.2, 0.9, 1.1, 1.0, 0.8], "abcdef").p < 0.001
    assert cluster_interval([1.0, -1.0, 0.5, -0.5], "abcd").p > 0.5
    assert cluster_interval([0.0, 0.0], "ab") == (0, 0, 0, 1)


def test_mcnemar_by_hand():
    """1 against 3: (1 + 4) of 16 outcomes on each side. Four verdicts of one kind cannot give less than 0.125."""
    assert mcnemar(1, 3) == 0.625 and mcnemar(0, 4) == 0.125 and mcnemar(2, 2) == 1 and mcnemar(0, 0) == 1


def test_holm_against_the_example_of_r():
    """R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm")"""
    adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert list(adjusted) == ["a", "b", "c", "d"]
    assert list(adjusted.values()) == pytest.approx([0.03, 0.06, 0.06, 0.02])
