"""The notes of a rank can be read whatever its end was, and reading them runs no code."""

import json
import os
from collections import deque
from fractions import Fraction

import numpy as np
import pytest
import torch

from ddp_course.grader.answer_record import read_record
from ddp_course.grader.harness.job import Job
from ddp_course.grader.harness.notes import TOO_LARGE, UNREADABLE, Notes, Operation, read_rank

pytestmark = pytest.mark.smoke


def test_returned_values_are_read_back(tmp_path):
    large = torch.arange(1_000_000, dtype=torch.float64)
    returned = {
        "tensors": [large[:2], torch.tensor(True), torch.nn.Parameter(torch.ones(2))],
        "plain": (1, 0.1, None, True, "é", float("inf"), np.float64(0.5)),
        "of NumPy and others": [np.int64(3), np.bool_(True), np.arange(2), range(2), deque([Fraction(1, 2)])],
        (0, "a"): {3, 4},
        "other": object,
    }
    notes = Notes(tmp_path, 1)
    notes({"call": 0})
    notes({"op": "all_reduce", "bytes": 8, "peer": None, "line": 3})
    notes.returned(0, returned, [large[5:7]])
    notes({"ended": True})
    record = read_rank(tmp_path, 1)
    [result], [after] = record.results, record.tensors_after
    assert result["tensors"][0].equal(large[:2]) and result["tensors"][1].item() is True
    assert type(result["tensors"][2]) is torch.Tensor and not result["tensors"][2].requires_grad
    assert result["plain"] == [1, 0.1, None, True, "é", float("inf"), 0.5]
    assert result["of NumPy and others"] == [3, True, [0, 1], [0, 1], [0.5]]
    assert result[0, "a"] == {3, 4} and result["other"] == repr(object)
    assert after[0].tolist() == [5.0, 6.0]
    assert record.operations == [[Operation("all_reduce", 8, None, 3)]] and record.ended
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 20_000, "a view brought all of its tensor"


def test_a_very_large_result_is_left_out(tmp_path):
    Notes(tmp_path, 0).returned(0, torch.zeros(2**21), [])
    assert read_rank(tmp_path, 0).results == [TOO_LARGE]


def test_a_sudden_end_loses_no_note(tmp_path):
    notes = Notes(tmp_path, 0)
    notes.returned(0, 1.5, [])
    notes({"raised": {"type": "ValueError"}})
    (tmp_path / "rank_0.1.part").write_bytes(b"half of a result")
    with open(tmp_path / "rank_0.jsonl", "a") as file:
        file.write('{"stuck": tr')
    record = read_rank(tmp_path, 0)
    assert record.results == [1.5] and record.raised == {"type": "ValueError"} and not record.stuck


class RunsCode:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_files_that_an_answer_writes_among_the_notes_run_no_code(tmp_path):
    torch.save([RunsCode(str(tmp_path / "ran")), []], tmp_path / "rank_0.0.pt")
    (tmp_path / "rank_0.1.pt").write_bytes(b"no file of torch")
    torch.save(3, tmp_path / "rank_0.2.pt")
    for pipe in ("rank_0.3.pt", "rank_0.stdout", "ended.json"):
        os.mkfifo(tmp_path / pipe)
    notes = 5, ["op"], {"op": "all_reduce", "kind": "forged"}, {"results": ["forged"], "exit_code": 0, "ended": True}
    (tmp_path / "rank_0.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))
    record = read_rank(tmp_path, 0)
    assert record.results == [UNREADABLE] * 3 and record.exit_code is None and record.ended
    assert record.operations == [[]] and not read_record(tmp_path, Job(1)).finished
    assert not (tmp_path / "ran").exists()
