"""Predictions: what is printed, how far off it was, and the table at the end of a notebook."""

import numpy
import pytest
import torch

from ddp_course.lab import predict as module
from ddp_course.lab.predict import predict, scoreboard

pytestmark = pytest.mark.smoke


@pytest.fixture(autouse=True)
def empty_notebook(monkeypatch):
    monkeypatch.setattr(module, "_predictions", {})


def revealed(capsys, guess, measured, unit="", note=""):
    prediction = predict("How many?", default=guess, unit=unit)
    capsys.readouterr()
    prediction.reveal(measured, note)
    return capsys.readouterr().out.strip()


def test_the_question_and_the_recorded_prediction_are_printed(capsys):
    predict("all-reduce calls per step", default=1500, unit="calls")
    question, recorded = capsys.readouterr().out.splitlines()
    assert question == "all-reduce calls per step"
    assert recorded == "your prediction: 1,500 calls"


def test_without_an_answer_the_notebook_runs_on_and_says_so(capsys):
    prediction = predict("seconds for a launch", default=None, unit="s")
    assert "not predicted: write your answer in s after default=" in capsys.readouterr().out
    prediction.reveal(2.5, "of wall clock")
    assert capsys.readouterr().out == "not predicted · measured 2.5 s · of wall clock\n"
    assert repr(prediction) == "seconds for a launch: not predicted"
    assert scoreboard().rows[1] == ("seconds for a launch", "not predicted", "2.5 s", "")


@pytest.mark.parametrize(
    ("guess", "measured", "unit", "printed"),
    [
        (1, 8, "", "you said 1 · measured 8 · off by a factor of 8"),
        (8, 1, "", "you said 8 · measured 1 · off by a factor of 8"),
        (1500.0, 12345.6, "tokens/s", "you said 1,500 tokens/s · measured 12,346 tokens/s · off by a factor of 8.23"),
        (8, 8.0, "", "you said 8 · measured 8 · as predicted"),
        (1.0, 1.004, "s", "you said 1 s · measured 1 s · within 1 %"),
        (0, 3, "ms", "you said 0 ms · measured 3 ms · off by 3 ms"),
        (-1.0, 2.0, "", "you said -1 · measured 2 · off by 3"),
        (2.0, float("nan"), "", "you said 2 · measured nan · not as predicted"),
        ("sum", "mean", "", "you said sum · measured mean · not as predicted"),
        (True, False, "", "you said True · measured False · not as predicted"),
        (True, True, "", "you said True · measured True · as predicted"),
    ],
)
def test_reveal_prints_both_and_how_far_off_it_was(capsys, guess, measured, unit, printed):
    assert revealed(capsys, guess, measured, unit) == printed


def test_tensors_and_arrays_of_one_element_are_numbers(capsys):
    assert revealed(capsys, 1, torch.tensor(8)) == revealed(capsys, 1, 8)
    assert revealed(capsys, 1, numpy.float64(2.0)) == revealed(capsys, 1, 2.0)


def test_a_note_comes_last(capsys):
    assert revealed(capsys, 1, 8, note="one a bucket").endswith("· one a bucket")


def test_an_emulated_number_is_not_called_measured(capsys):
    prediction = predict("How many?", default=1)
    prediction.reveal(8, source="emulated")
    assert capsys.readouterr().out.endswith("you said 1 · emulated 8 · off by a factor of 8\n")
    assert scoreboard().rows[1:] == [("How many?", "1", "8, emulated", "off by a factor of 8")]


def test_reveal_shows_nothing_more_as_the_last_expression_of_a_cell():
    assert predict("How many?", default=1).reveal(2) is None


def test_revealing_twice_keeps_the_later_measurement():
    prediction = predict("How many?", default=1)
    prediction.reveal(8)
    prediction.reveal(2)
    assert scoreboard().rows[1:] == [("How many?", "1", "2", "off by a factor of 2")]


def test_the_scoreboard_has_a_row_for_each_question_in_order_also_when_a_cell_runs_again():
    predict("first", default=1, unit="s").reveal(2)
    predict("second <b>", default="sum")
    predict("first", default=2, unit="s").reveal(2)
    table = scoreboard()
    assert table.rows[1:] == [("first", "2 s", "2 s", "as predicted"), ("second <b>", "sum", "not yet", "")]
    assert len(repr(table).splitlines()) == 3
    page = table._repr_html_()
    assert "second &lt;b&gt;" in page and page.count("<tr>") == 3


def test_an_empty_scoreboard_is_a_heading():
    assert len(repr(scoreboard()).splitlines()) == 1
