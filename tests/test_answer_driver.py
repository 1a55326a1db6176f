"""A job's driver calls the answer's function on each rank; the modules that a job loads are there before its ranks."""

import os
import sys
from pathlib import Path

import pytest

from ddp_course.grader.answer_record import Call, Job, RankRecord, cases
from ddp_course.grader.answer_run import run_answers
from ddp_course.grader.judge import run_failure

DRIVER = """
import sys
import torch
import torch.distributed as dist

def drive(function, what):
    return {"handed": what, "doubled": function(torch.ones(2, dtype=torch.float64)), "loaded": "wave" in sys.modules,
            "rank": dist.get_rank()}
"""
ANSWER = "def double(tensor):\n    return 2 * tensor\n"


@pytest.fixture
def job(tmp_path, monkeypatch):
    (tmp_path / "made_up").mkdir()
    (tmp_path / "made_up" / "driver.py").write_text(DRIVER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    calls = (Call([("a",), ("b",)], ""), Call([("c",), ("d",)], ""))
    return Job(2, function="double", calls=calls, driver=True, loads=("wave",))


def records(job, text, folder):
    Path(folder, "answer.py").write_text(text)
    [job_records] = run_answers([(folder / "answer.py", [job], "made_up")])
    return job_records


def test_a_driver_is_handed_the_function_and_the_arguments(job, tmp_path):
    results = [result for case in cases(records(job, ANSWER, tmp_path)) for result in case.results]
    assert [(result["handed"], result["rank"]) for result in results] == [("a", 0), ("b", 1), ("c", 0), ("d", 1)]
    assert all(result["doubled"].tolist() == [2.0, 2.0] for result in results)
    if sys.platform == "linux":  # elsewhere ranks are not forked
        assert all(result["loaded"] for result in results)


def test_a_missing_function_and_an_error_in_a_function_are_blamed_on_the_answer(job, tmp_path):
    [record] = records(job, "def triple(tensor):\n    return 3 * tensor\n", tmp_path)
    assert run_failure(record, Path("answer.py"))[1] == "function missing"
    # A rank that misses the function may have left before the other one was connected.
    record.ranks[0] = RankRecord(raised={"type": "RuntimeError", "text": "Connection closed by peer", "line": None})
    assert run_failure(record, Path("answer.py"))[1] == "function missing"
    [record] = records(job, "def double(tensor):\n    return tensor.twice()\n", tmp_path)
    state, check, observed, look = run_failure(record, Path("answer.py"))
    assert (check, look) == ("raises", "answer.py, line 2: return tensor.twice()"), observed


def test_the_hash_of_a_text_differs_between_ranks(tmp_path):
    """As under torchrun, where each process has a hash seed of its own. The hash of a number is the same on all."""
    text = "def hashes(_):\n    return [hash('a'), hash((1, b'a')), hash(7), hash((1, 2))]\n"
    job = Job(2, function="hashes", calls=(Call([(0,), (0,)], ""),))
    [[first, second]] = [case.results for case in cases(records(job, text, tmp_path))]
    assert first[0] != second[0] and first[1] != second[1] and first[2:] == second[2:] == [7, hash((1, 2))]
