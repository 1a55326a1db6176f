"""A job's driver calls the answer's function on each rank; the modules of `loads` are imported before the fork."""

import os
import sys
import time
from pathlib import Path

import pytest

from ddp_course.grader.answer_record import cases
from ddp_course.grader.answer_run import run_answers
from ddp_course.grader.harness import rank, start
from ddp_course.grader.harness.job import Call, Job, Task
from ddp_course.grader.harness.notes import RankRecord
from ddp_course.grader.judge import run_failure

DRIVER = """
import sys
import torch
import torch.distributed as dist

def drive(function, argument):
    try:
        doubled = function(torch.ones(2, dtype=torch.float64))
    except KeyError:
        dist.barrier()
    return {"argument": argument, "doubled": doubled, "loaded": "wave" in sys.modules, "rank": dist.get_rank()}
"""
CALLS = (Call([("a",), ("b",)], ""), Call([("c",), ("d",)], ""))
DRIVEN = Job(2, function="double", calls=CALLS, driver=True, loads=("wave",))
LEAVES = """
import torch.distributed as dist

def double(tensor):
    if dist.get_rank() == 0:
        raise KeyError("merges")
    dist.all_reduce(tensor)
"""
GOES_ON = """
import torch.distributed as dist

def double(tensor, calls=[]):
    calls.append(tensor)
    if dist.get_rank() == 1:
        dist.all_reduce(tensor)
    elif len(calls) == 2:
        dist.recv(tensor, 1)
"""
HANGING = Job(
    2, function="double", calls=(Call([(1,)] * 2, "first"), Call([(2,)] * 2, "second")), driver=True, patience=1.0
)
ANSWERS = {
    "leaves": (LEAVES, HANGING),
    "goes on": (GOES_ON, HANGING),
    "right": ("def double(tensor):\n    return 2 * tensor\n", DRIVEN),
    "missing": ("def triple(tensor):\n    return 3 * tensor\n", DRIVEN),
    "raises": ("def double(tensor):\n    return tensor.twice()\n", DRIVEN),
    "hashes": (
        "def hashes(_):\n    return [hash('a'), hash((1, b'a')), hash(7), hash((1, 2))]\n",
        Job(2, function="hashes", calls=(Call([(0,), (0,)], ""),)),
    ),
}


@pytest.fixture(scope="module")
def record_of(tmp_path_factory, module_launches_warm):
    """{name of an answer: the record of its job}, with one start of the harness."""
    folder = tmp_path_factory.mktemp("answers")
    (folder / "made_up").mkdir()
    (folder / "made_up" / "driver.py").write_text(DRIVER)
    for name, (text, _) in ANSWERS.items():
        (folder / f"{name}.py").write_text(text)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        records = run_answers([(folder / f"{name}.py", [job], "made_up") for name, (_, job) in ANSWERS.items()])
    return {name: record for name, [record] in zip(ANSWERS, records, strict=True)}


def test_a_driver_gets_the_function_and_the_arguments(record_of):
    results = [result for case in cases([record_of["right"]]) for result in case.results]
    assert [(result["argument"], result["rank"]) for result in results] == [("a", 0), ("b", 1), ("c", 0), ("d", 1)]
    assert all(result["doubled"].tolist() == [2.0, 2.0] for result in results)
    if sys.platform == "linux":  # elsewhere ranks are not forked
        assert all(result["loaded"] for result in results)


def test_a_missing_function_and_an_error_in_a_function_are_blamed_on_the_answer(record_of, tmp_path):
    answer = tmp_path / "answer.py"
    answer.write_text(ANSWERS["raises"][0])
    missing = record_of["missing"]
    assert run_failure(missing, answer)[1] == "function missing"
    # A rank without the function may have ended before the other was connected.
    missing.ranks[0] = RankRecord(raised={"type": "RuntimeError", "text": "Connection closed by peer", "line": None})
    assert run_failure(missing, answer)[1] == "function missing"
    state, check, observed, look = run_failure(record_of["raises"], answer)
    assert (check, look) == ("raises", "answer.py, line 2: return tensor.twice()"), observed


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("leaves", "rank 0 had raised KeyError: 'merges', rank 1 was in all_reduce (line 7)"),
        ("goes on", "rank 0 was in recv from rank 1 (line 9) of the next case, rank 1 was in all_reduce (line 7)"),
    ],
)
def test_a_hang_names_the_case_of_the_rank_that_is_behind(record_of, tmp_path, name, positions):
    answer = tmp_path / "answer.py"
    answer.write_text(ANSWERS[name][0])
    observed = run_failure(record_of[name], answer).observed
    assert observed == f"with 2 ranks (first): no end, and nothing moves: {positions}"


@pytest.mark.usefixtures("warm_launches")
def test_a_script_that_did_not_run_for_a_failed_answer_runs_for_the_next_one(tmp_path):
    """It runs once for all answers of a lane."""
    texts = {"raises": "raise ValueError\n", "right": "def call():\n    return 1\n", "script": "print(1)\n"}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    jobs = [Job(1, function="call", calls=(Call([()], ""),)), Job(1, script=tmp_path / "script.py")]
    records = run_answers([(tmp_path / f"{name}.py", jobs, "") for name in ("raises", "right", "right")])
    assert [[record.started for record in answer_records] for answer_records in records] == [[True, True]] * 3
    assert records[1][1] is records[2][1] and records[1][1].ranks[0].stdout == "1\n"


def test_the_hash_of_a_text_differs_between_ranks(record_of):
    """As under torchrun, where each process has a hash seed of its own. The hash of a number is the same on all."""
    [[first, second]] = [case.results for case in cases([record_of["hashes"]])]
    assert first[0] != second[0] and first[1] != second[1] and first[2:] == second[2:] == [7, hash((1, 2))]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ranks are not forked, and load what is not patched")
def test_a_script_begins_when_its_last_rank_has_started(monkeypatch, tmp_path):
    """Its process group may have a timeout that is shorter than a rank waits for a core."""
    script = tmp_path / "script.py"
    script.write_text("import os\nif os.path.exists('started'):\n    open('rank_' + os.environ['RANK'], 'w').close()\n")

    def start_late(*_):
        if os.environ["RANK"] == "1":
            time.sleep(0.3)
            Path("started").touch()

    monkeypatch.setattr(rank, "in_new_threads", start_late)
    start.run_lane(tmp_path, [(0, Task(Job(2, script=script), script, 0, 0, ""))])
    assert {path.name for path in (tmp_path / "0" / "work").iterdir()} == {"started", "rank_0", "rank_1"}
