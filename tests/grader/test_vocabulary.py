"""The functions that exercises write checks with: how a check is called, and what its message says."""

import math
from types import SimpleNamespace

import pytest
import torch

from ddp_course.grader.answer_record import JobRecord
from ddp_course.grader.exercises import checks_in
from ddp_course.grader.harness.job import Call, Job
from ddp_course.grader.harness.notes import Operation, RankRecord
from ddp_course.grader.harness.tensors import fingerprint, largest_gap, random_tensor
from ddp_course.grader.vocabulary import (
    Detector,
    Wrong,
    are_close,
    by_pattern,
    check,
    driver_job,
    expect,
    expect_few_bytes,
    expect_small_gap,
    function_job,
    is_close,
    jobs_of,
    plural,
    show,
    total_bytes,
)

pytestmark = pytest.mark.smoke


def record(scenario="odd", results=(1, 2)):
    """A job with one call on as many ranks as there are results."""
    job = Job(len(results), "f", (Call([()] * len(results), scenario),))
    return JobRecord(job, [RankRecord([result], [[]], [[]]) for result in results])


def test_calls_become_a_job_for_each_number_of_ranks():
    on_2, on_1, again_on_2 = (Call([()] * world, name) for world, name in ((2, "a"), (1, "b"), (2, "c")))
    two, one = jobs_of("f", [on_2, on_1, again_on_2], seconds=3.0)
    assert (two.world, two.calls, one.world, one.calls) == (2, (on_2, again_on_2), 1, (on_1,))
    assert all((job.function, job.seconds) == ("f", 3.0) for job in (one, two))


RECORDS = [record("odd", (1, 2)), record("even", (3, 4))]


@pytest.mark.parametrize(
    ("function", "calls"),
    [
        (
            lambda case, rank, result: (case.scenario, rank, result),
            [("odd", 0, 1), ("odd", 1, 2), ("even", 0, 3), ("even", 1, 4)],
        ),
        (lambda case: case.scenario, ["odd", "even"]),
        (lambda cases: [case.scenario for case in cases], [["odd"], ["even"]]),
        (lambda records: len(records), [2]),
    ],
    ids=["by case and rank", "by case", "by job", "once"],
)
def test_a_check_is_called_as_its_parameters_say(function, calls):
    returned = []
    assert check(lambda values: returned.extend(values) or "fine")(function)(RECORDS) == "fine"
    assert returned == calls


def test_a_check_is_limited_to_its_jobs_and_scenarios():
    checked = []
    check("fine", [RECORDS[1].job])(lambda case: checked.append(case.scenario))(RECORDS)
    check("fine", scenarios={"odd"})(lambda case: checked.append(case.scenario))(RECORDS)
    assert checked == ["even", "odd"]


@pytest.mark.parametrize(
    ("begin", "message"),
    [("{where}", "with 2 ranks (odd): "), ("{scenario}: ", "odd: "), ("{ranks}: ", "with 2 ranks: "), ("", "")],
)
def test_the_message_begins_with_the_case(begin, message):
    def results_are_small(case, rank, result):
        expect(result < 2, lambda: f"rank {rank} has {result}", "the sum")

    with pytest.raises(Wrong) as wrong:
        check("fine", begin=begin)(results_are_small)(RECORDS)
    assert (wrong.value.observed, wrong.value.look) == (f"{message}rank 1 has 2", "the sum")


def test_checks_run_in_the_order_in_which_they_are_defined():
    detector = Detector("is_right", {"odd"}, {"even"}, [RECORDS[0].job])
    module = SimpleNamespace(
        last=None, b=check("")(lambda case: None), DETECTOR_CHECKS=[detector.agrees("x"), detector.passes("", "", "")]
    )
    assert [entry.name for entry in checks_in(module)] == ["<lambda>", "all_ranks_agree", "right_versions_pass"]


def test_a_detector_must_pass_right_versions_and_catch_broken_ones():
    true, false = record("right", (True, torch.tensor(True))), record("broken", (torch.tensor(False), False))
    detector = Detector("is_right", {"right"}, {"broken"}, [true.job, false.job])
    checks = detector.passes(", why", "there", "passes"), detector.catches("", str.upper, "caught")
    assert [each([true, false]) for each in checks] == ["passes", "caught"]
    deceived = record("broken", (True, True))
    with pytest.raises(Wrong, match="is_right returned True") as wrong:
        Detector("is_right", {"right"}, {"broken"}, [deceived.job]).catches("", str.upper, "")([deceived])
    assert wrong.value.look == "BROKEN"
    with pytest.raises(Wrong, match="False on rank 1 and True on rank 0"):
        divided = record("right", (True, False))
        Detector("is_right", {"right"}, {}, [divided.job]).agrees("there")([divided])


def test_only_numbers_are_close():
    assert is_close(2, 2.0) and is_close(2.01, 2.0, abs_tol=0.1)
    assert not any(is_close(value, 2.0) for value in (torch.tensor([2.0]), "2", math.nan, 2.01))
    assert are_close([1, 2.01], (1.0, 2.0), abs_tol=0.1) and are_close(torch.tensor([1.0, 2.0]), (1.0, 2.0))
    assert not are_close([1.0], (1.0, 2.0)) and not are_close([1.0, "2"], (1.0, 2.0)) and not are_close(None, ())


def test_some_operations_do_not_count():
    operations = [Operation("send", 8, 1, 3), Operation("recv", 16, 1, 4), Operation("broadcast", 4, None, 5)]
    assert total_bytes(operations) == 28
    assert expect_few_bytes(0, operations, 8, "", "where", without=("recv", "broadcast")) == 8
    with pytest.raises(Wrong) as wrong:
        expect_few_bytes(0, operations, 27, " for 3 values", "where")
    assert wrong.value.observed == "rank 0 handed 28 bytes to send and recv and broadcast for 3 values; 27 are allowed"


def test_a_gap_is_named_with_its_reference():
    expect_small_gap(0.9, 1.0, "the output", "the sum")
    for gap in (1.0, math.inf, math.nan):
        with pytest.raises(Wrong) as wrong:
            expect_small_gap(gap, 1.0, "the output", "the sum")
        assert wrong.value.observed == f"the output is {gap:.1e} away from one process"


def test_the_largest_gap_is_infinite_where_tensors_cannot_be_compared():
    right = torch.tensor([1.0, -math.inf])
    assert largest_gap(right.clone(), right) == 0.0 and largest_gap(torch.tensor([0.5, -math.inf]), right) == 0.5
    for other in (None, torch.ones(3), torch.tensor([math.nan, -math.inf]), torch.tensor([1.0, 2.0])):
        assert largest_gap(other, right) == math.inf


def test_a_fingerprint_sees_every_bit():
    tensor = random_tensor(3, 4, 2)
    assert torch.equal(tensor, random_tensor(3, 4, 2)) and tensor.dtype == torch.float64
    assert fingerprint([tensor, tensor[0]]) == fingerprint([tensor.t().contiguous().t(), tensor[0].clone()])
    flipped = tensor.clone()
    flipped[2, 1] = flipped[2, 1].nextafter(torch.tensor(math.inf))
    assert fingerprint([tensor]) != fingerprint([flipped])
    assert fingerprint([torch.tensor(0.0)]) != fingerprint([torch.tensor(-0.0)])


def test_long_values_are_cut():
    assert show(1 / 3) == "0.333333" and show(1 / 3, 2) == "0.33"
    assert show(torch.arange(8)) == "[0, 1, 2, 3, 4, 5, ...]"
    assert (plural(1, "rank"), plural(0, "rank")) == ("1 rank", "0 ranks")
    assert show("x" * 90) == "'" + "x" * 55 + " ..." and show(None) == "None"


def test_a_job_hands_over_scenarios_and_what_follows_them():
    named = driver_job(2, "f", {"odd": (1, 2)}, seconds=3.0)
    assert (named.world, named.function, named.seconds, named.driver) == (2, "f", 3.0, True)
    assert [(call.scenario, call.args) for call in named.calls] == [("odd", [(1, 2)] * 2)]
    listed = function_job(1, "f", ["odd", ("own", 1), ("own", 2)])
    assert not listed.driver
    assert [(call.scenario, call.args) for call in listed.calls] == [
        ("odd", [("odd",)]),
        ("own", [("own", 1)]),
        ("own", [("own", 2)]),
    ]


def test_where_to_look_is_the_first_pattern_in_the_scenario():
    look = by_pattern({"NaN|-1": "bits", "^the sum$": "the divisor", "": "elsewhere"})
    assert [look(name) for name in ("a NaN", "the sum", "the sum, twice")] == ["bits", "the divisor", "elsewhere"]
