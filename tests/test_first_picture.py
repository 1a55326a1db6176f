"""The first page's picture shows the losses of notebook 04 and the buckets of a predicted step."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytest.importorskip("sphinx", reason="make site installs what builds it")


@pytest.fixture
def first_picture(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "site")
    return importlib.import_module("first_picture")


def test_its_losses_are_those_of_one_and_of_two_processes(first_picture):
    losses = first_picture.recorded_losses()
    assert sorted(losses) == [1, 2] and list(losses[1]) == list(losses[2]) and len(losses[2]) > 5
    assert losses[1] == pytest.approx(losses[2], abs=2e-5)  # as notebook 04 asserts


def test_each_bucket_is_on_both_ranks_and_on_the_link(first_picture):
    picture = first_picture.picture()
    assert picture.count(">0</text>") == 3 and picture.count("forward</text>") == 2
    assert len(re.findall("@keyframes", picture)) == picture.count("animation:appear-")
    assert picture.count("<line") == 2 * (len(first_picture.recorded_losses()[2]) - 1)
