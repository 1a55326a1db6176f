"""Agreement between ranks, each on real processes."""

from types import SimpleNamespace

import pytest
import torch
import warm

from ddp_course.distributed import sync
from ddp_course.distributed.process_group import World

HEADER = """
import json, os, signal, time
import torch
from ddp_course.base.errors import InputError
from ddp_course.distributed import process_group, sync
"""

ON_FOUR_RANKS = """
world = process_group.start(timeout_seconds=600)


def fail(error):
    raise error("no such file: x.txt")


def failure(function, *arguments):
    try:
        function(*arguments)
    except Exception as caught:
        return [type(caught).__name__, str(caught)]


results = {
    error.__name__: failure(sync.from_rank_0, world, lambda: fail(error)) for error in (InputError, ZeroDivisionError)
}
results["decided"] = sync.from_rank_0(world, lambda: {"name": f"run-{world.rank}"})
results["not_picklable"] = failure(sync.from_rank_0, world, lambda: open(__file__))
results["other_values"] = failure(sync.assert_same_value, "the tokenizer", "bpe" if world.rank == 2 else "bytes")
value = torch.tensor(2.0**24 if world.rank == 0 else 1.0)
results["sums"] = sync.sum_over_ranks(world, value, world.rank + 1, 0.1)
print(json.dumps(results))
process_group.stop()
"""

SLOW_THEN_FROZEN = """
process_group.start(timeout_seconds=600)
torch.distributed.barrier()  # one rank may begin long after the other
process_group.stop()
os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"
world = process_group.start(timeout_seconds=2)
print(sync.from_rank_0(world, lambda: time.sleep(4) or 7), flush=True)
pid = sync.from_rank_0(world, os.getpid)
try:
    sync.from_rank_0(world, lambda: os.kill(pid, signal.SIGSTOP))
finally:
    os.kill(pid, signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory):
    """The results of ON_FOUR_RANKS, by rank."""
    path = tmp_path_factory.mktemp("four") / "script.py"
    path.write_text(HEADER + ON_FOUR_RANKS)
    run = warm.ranks(path, nproc=4)
    return lambda name: [run.results[rank][name] for rank in range(4)]


@pytest.fixture(scope="module")
def slow_then_frozen(tmp_path_factory):
    """The two ended processes of SLOW_THEN_FROZEN; rank 0 is killed when rank 1 has given up."""
    path = tmp_path_factory.mktemp("frozen") / "script.py"
    path.write_text(HEADER + SLOW_THEN_FROZEN)
    return warm.rank_processes(path, [], nproc=2, timeout=250)


def test_rank_0_decides_for_all(four_ranks):
    assert four_ranks("decided") == [{"name": "run-0"}] * 4


@pytest.mark.parametrize("error", ["InputError", "ZeroDivisionError"])
def test_a_failure_on_rank_0_reaches_every_rank(four_ranks, error):
    text = "no such file: x.txt"
    assert four_ranks(error) == [[error, text], *[["InputError", text]] * 3]


def test_a_result_that_cannot_be_sent_fails_on_every_rank(four_ranks):
    failures = four_ranks("not_picklable")
    assert [kind for kind, _ in failures] == ["TypeError", *["InputError"] * 3]
    assert all("cannot pickle" in text for _, text in failures)


def test_values_that_differ_are_shown(four_ranks):
    text = "the tokenizer differs: rank 0 has 'bytes', rank 2 has 'bpe'"
    assert four_ranks("other_values") == [["ReplicasDiffer", text]] * 4


def test_sums_are_exact_in_float64(four_ranks):
    # In float32, 2**24 + 1 is 2**24: a reduction in the values' own format would lose the ones.
    assert four_ranks("sums") == [[2**24 + 3, 10, 0.1 + 0.1 + 0.1 + 0.1]] * 4


def test_rank_0_may_take_longer_than_a_collective_may_wait(slow_then_frozen):
    assert [process.stdout for process in slow_then_frozen] == ["7\n", "7\n"]


def test_a_frozen_rank_0_is_an_error_and_no_endless_wait(slow_then_frozen):
    assert [process.returncode for process in slow_then_frozen] == [-9, 1]
    assert "RankSilent: rank 0 has given no sign of life for 10 s" in slow_then_frozen[1].stderr


def test_a_rank_that_was_stopped_itself_does_not_call_rank_0_silent(monkeypatch):
    """A minute passes right after rank 0's count has been read, in which rank 0 has gone on and finished."""
    now, answers = [0.0], iter([False, True])

    def stopped_afterwards(key, amount):
        now[0] += 60
        return 0

    store = SimpleNamespace(
        check=lambda keys: next(answers), add=stopped_afterwards, timeout=SimpleNamespace(total_seconds=lambda: 20)
    )
    monkeypatch.setattr(sync, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: None))
    sync._wait_for_rank_0(World(1, 1, 2, torch.device("cpu")), store, "turn")
