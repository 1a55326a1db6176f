"""In the grader the result of a collective is there only after a wait for it."""

from pathlib import Path

import pytest
import torch

from ddp_course.grader.answer_record import cases
from ddp_course.grader.answer_run import run_answers
from ddp_course.grader.harness import pending
from ddp_course.grader.harness.job import Call, Job
from ddp_course.grader.judge import missing_wait, run_failure

EVERY_COLLECTIVE = """
import torch
import torch.distributed as dist

def started():
    '''(name, what it fills, the Work) of each collective on two ranks, started and not waited for.'''
    rank, root = float(dist.get_rank()), dist.get_rank() == 0
    own, pair, parts = torch.full((2,), rank), torch.zeros(4), [torch.zeros(2), torch.zeros(2)]
    halves = [torch.full((2,), rank), torch.full((2,), rank + 10)]
    x = own.clone()
    yield "all_reduce", x, dist.all_reduce(x, async_op=True)
    x = own.clone()
    yield "broadcast", x, dist.broadcast(x, 1, async_op=True)
    x = own.clone()
    yield "reduce", x, dist.reduce(x, 0, async_op=True)
    yield "all_gather", parts, dist.all_gather(parts, own, async_op=True)
    yield "all_gather_into_tensor", pair, dist.all_gather_into_tensor(pair, own, async_op=True)
    all_own = [torch.zeros(2), torch.zeros(2)]
    yield "gather", all_own, dist.gather(own, all_own if root else None, async_op=True)
    x = torch.zeros(2)
    yield "scatter", x, dist.scatter(x, halves if root else None, async_op=True)
    x = torch.zeros(2)
    yield "reduce_scatter", x, dist.reduce_scatter(x, halves, async_op=True)
    x = torch.zeros(4)
    yield "all_to_all_single", x, dist.all_to_all_single(x, torch.cat(halves), async_op=True)
    x, peer = torch.zeros(2), 1 - dist.get_rank()
    dist.isend(own, peer)
    yield "irecv", x, dist.irecv(x, peer)

def flat(value):
    return torch.cat(value).tolist() if isinstance(value, list) else value.tolist()

def calls(how):
    values = {}
    for name, value, work in started():
        unwaited = flat(value)
        if how == "wait" or (how != "never" and name in ("all_to_all_single", "reduce_scatter", "irecv")):
            work.wait()  # with gloo these have no future, and is_completed is false until the wait
        elif how == "future":
            work.get_future().wait()
        elif how == "poll":
            while not work.is_completed():
                pass
        values[name] = [unwaited, flat(value)]
    dist.barrier()
    return values
"""
TWICE = """
import torch
import torch.distributed as dist

def calls():
    '''Two messages are received into one tensor, as torch 2.11's pipelines do at their start, and waited for.'''
    received, peer = torch.zeros(1), 1 - dist.get_rank()
    works = [work for _ in range(2) for work in (dist.isend(torch.ones(1), peer), dist.irecv(received, peer))]
    for work in works:
        work.wait()
    return received
"""
RESULTS = {  # {collective: the values on each rank}
    "all_reduce": ([1.0, 1.0], [1.0, 1.0]),
    "broadcast": ([1.0, 1.0], [1.0, 1.0]),
    "all_gather": ([0.0, 0.0, 1.0, 1.0],) * 2,
    "all_gather_into_tensor": ([0.0, 0.0, 1.0, 1.0],) * 2,
    "gather": ([0.0, 0.0, 1.0, 1.0], [0.0] * 4),
    "scatter": ([0.0, 0.0], [10.0, 10.0]),
    "reduce_scatter": ([1.0, 1.0], [21.0, 21.0]),
    "all_to_all_single": ([0.0, 0.0, 1.0, 1.0], [10.0, 10.0, 11.0, 11.0]),
    "irecv": ([1.0, 1.0], [0.0, 0.0]),
}


@pytest.fixture(scope="module")
def records(tmp_path_factory, module_launches_warm):
    """The records of both answers, with one start of the harness."""
    folder, ways = tmp_path_factory.mktemp("answers"), ("wait", "future", "poll", "never")
    (folder / "every.py").write_text(EVERY_COLLECTIVE)
    (folder / "twice.py").write_text(TWICE)
    every = Job(2, "calls", tuple(Call([(how,)] * 2, how) for how in ways))
    twice = Job(2, "calls", (Call([()] * 2, ""),))
    [[of_every], [of_twice]] = run_answers([(folder / "every.py", [every], ""), (folder / "twice.py", [twice], "")])
    return of_every, of_twice


def test_a_result_is_there_after_a_wait_and_not_before(records):
    record, _ = records
    assert run_failure(record, Path("answer.py")) is None
    for case in cases([record]):
        for rank, results in enumerate(case.results):
            for name, expected in RESULTS.items():
                unwaited, waited = (torch.tensor(values) for values in results[name])
                if case.scenario == "never":
                    assert torch.equal(waited.nan_to_num(-1), unwaited.nan_to_num(-1)), (name, rank)
                else:
                    assert waited.tolist() == expected[rank], (case.scenario, name, rank, results[name])
                if name == "irecv":
                    assert unwaited.isnan().all(), "fresh memory might hold the right values by chance"
    assert "only starts all_reduce" in missing_wait([record])


class EndsAnother(list):
    """The pairs of an operation; while they are read, gloo's thread ends operation 1."""

    def __iter__(self):
        pending.unfinished.pop(1, None)
        return super().__iter__()


def test_a_future_may_end_an_operation_while_another_is_read(monkeypatch):
    operation = pending.PendingOperation(None, "all_reduce", 1, EndsAnother())
    monkeypatch.setattr(pending, "unfinished", {0: operation, 1: operation, 2: operation})
    pending.note_early_read((torch.ones(1),), line=2)
    assert list(pending.unfinished) == [0, 2]


def test_a_copy_that_the_grader_makes_is_no_read_of_the_answer(records):
    _, record = records
    assert run_failure(record, Path("answer.py")) is None and not missing_wait([record])
