"""Agreement between ranks, each on real processes."""

import pytest
import warm

from ddp_course.launcher import RunFailed, torchrun

HEADER = """
import json
import torch
from ddp_course.base.errors import InputError
from ddp_course.distributed import process_group, sync
world = process_group.start(timeout_seconds=30)
"""
FOOTER = """
process_group.stop()
"""


ON_TWO_RANKS = """
def fail(error):
    raise error("no such file: x.txt")


def failure(function, *arguments):
    try:
        function(world, *arguments)
    except Exception as caught:
        return [type(caught).__name__, str(caught)]


results = {error.__name__: failure(sync.from_rank_0, lambda: fail(error)) for error in (InputError, ZeroDivisionError)}
results["decided"] = sync.from_rank_0(world, lambda: {"name": f"run-{world.rank}"})
results["not_picklable"] = failure(sync.from_rank_0, lambda: open(__file__))
results["other_values"] = failure(sync.assert_same_value, "the tokenizer", "bytes" if world.rank == 0 else "bpe")
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """The results of ON_TWO_RANKS, by rank: one job for all."""
    run = warm.ranks(script(tmp_path_factory.mktemp("two"), ON_TWO_RANKS), nproc=2)
    return lambda name: [run.results[rank][name] for rank in range(2)]


def script(folder, body, timeout_seconds=30):
    path = folder / "script.py"
    path.write_text(HEADER.replace("timeout_seconds=30", f"timeout_seconds={timeout_seconds}") + body + FOOTER)
    return path


def test_rank_0_decides_for_all(two_ranks):
    assert two_ranks("decided") == [{"name": "run-0"}] * 2


def test_rank_0_may_take_longer_than_a_collective_may_wait(tmp_path):
    body = """
import time
print(json.dumps({"found": sync.from_rank_0(world, lambda: time.sleep(4) or 7)}))
"""
    results = warm.ranks(script(tmp_path, body, timeout_seconds=2), nproc=2).results
    assert results == {0: {"found": 7}, 1: {"found": 7}}


@pytest.mark.parametrize("error", ["InputError", "ZeroDivisionError"])
def test_a_failure_on_rank_0_reaches_every_rank(two_ranks, error):
    (kind, text), (_, text_of_rank_1) = two_ranks(error)
    assert kind == error and text == text_of_rank_1 == "no such file: x.txt"


def test_a_result_that_cannot_be_sent_fails_on_every_rank(two_ranks):
    failures = two_ranks("not_picklable")
    assert [kind for kind, _ in failures] == ["TypeError", "InputError"]
    assert all("cannot pickle" in text for _, text in failures)


def test_a_frozen_rank_0_is_an_error_and_no_endless_wait(tmp_path):
    body = """
import os, signal
sync.from_rank_0(world, lambda: os.kill(os.getpid(), signal.SIGSTOP))
"""
    with pytest.raises(RunFailed, match="RankSilent: rank 0 has given no sign of life for 10 s"):
        torchrun(script(tmp_path, body, timeout_seconds=10), nproc=2, timeout=250)


def test_values_that_differ_are_shown(two_ranks):
    text = "the tokenizer differs: rank 0 has 'bytes', rank 1 has 'bpe'"
    assert two_ranks("other_values") == [["ReplicasDiffer", text]] * 2


def test_sums_are_exact_in_float64(tmp_path):
    # In float32, 2**24 + 1 is 2**24: a reduction in the values' own format would lose the ones.
    body = """
value = torch.tensor(2.0**24 if world.rank == 0 else 1.0)
total, count, small = sync.sum_over_ranks(world, value, world.rank + 1, 0.1)
print(json.dumps({"total": total, "count": count, "small": small}))
"""
    results = warm.ranks(script(tmp_path, body), nproc=4).results
    assert results[3] == {"total": 2**24 + 3, "count": 10, "small": 0.1 + 0.1 + 0.1 + 0.1}
