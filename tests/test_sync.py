"""Agreement between ranks, each on real processes."""

import pytest

from ddp_course.lab.launch import RunFailed, torchrun

HEADER = """
import json
import torch
from ddp_course.errors import InputError
from ddp_course.parallel import process_group, sync
world = process_group.start(timeout_seconds=30)
"""
FOOTER = """
process_group.stop()
"""


@pytest.fixture
def on_ranks(tmp_path):
    def run(body, nproc=2):
        script = tmp_path / "script.py"
        script.write_text(HEADER + body + FOOTER)
        return torchrun(script, nproc=nproc, quiet=True, timeout=60)

    return run


def test_rank_0_decides_for_all(on_ranks):
    body = 'made = sync.from_rank_0(world, lambda: {"name": f"run-{world.rank}"})\nprint(json.dumps(made))'
    assert on_ranks(body).results == {0: {"name": "run-0"}, 1: {"name": "run-0"}}


@pytest.mark.parametrize("error", ["InputError('no such file: x.txt')", "ZeroDivisionError('no such file: x.txt')"])
def test_a_failure_on_rank_0_reaches_every_rank(on_ranks, error):
    body = f"""
def fail():
    raise {error}
try:
    sync.from_rank_0(world, fail)
except Exception as caught:
    print(json.dumps({{"kind": type(caught).__name__, "text": str(caught)}}))
"""
    results = on_ranks(body).results
    assert [results[rank]["text"] for rank in (0, 1)] == ["no such file: x.txt"] * 2
    assert results[0]["kind"] == error.split("(")[0]


def test_sums_are_exact_in_float64(on_ranks):
    # In float32, 2**24 + 1 is 2**24: a reduction in the values' own format would lose the ones.
    body = """
value = torch.tensor(2.0**24 if world.rank == 0 else 1.0)
total, count, small = sync.sum_over_ranks(world, value, world.rank + 1, 0.1)
print(json.dumps({"total": total, "count": count, "small": small}))
"""
    assert on_ranks(body, nproc=4).results[3] == {"total": 2**24 + 3, "count": 10, "small": 0.1 + 0.1 + 0.1 + 0.1}


def test_equal_replicas_pass(on_ranks):
    body = """
process_group.seed_shared(1)
sync.assert_replicas_equal(world, torch.nn.Linear(4, 4))
print(json.dumps({"passed": True}))
"""
    assert on_ranks(body).results == {0: {"passed": True}, 1: {"passed": True}}


def test_the_first_tensor_and_rank_that_differ_are_named(on_ranks):
    body = """
process_group.seed_shared(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
if world.rank == 2:
    with torch.no_grad():
        model[1].weight[2, 3] += 0.5
sync.assert_replicas_equal(world, model)
"""
    with pytest.raises(RunFailed, match=r"1\.weight on rank 2 is up to 0\.5 from rank 0's \(1 of 4 tensors differ\)"):
        on_ranks(body, nproc=3)


def test_buffers_are_compared_only_on_request(on_ranks):
    body = """
model = torch.nn.BatchNorm1d(2)
model.running_mean += world.rank
sync.assert_replicas_equal(world, model)
try:
    sync.assert_replicas_equal(world, model, buffers=True)
except sync.ReplicasDiffer as error:
    print(json.dumps({"said": str(error)}))
"""
    assert "running_mean on rank 1" in on_ranks(body).results[0]["said"]


def test_values_that_differ_are_shown(on_ranks):
    body = """
try:
    sync.assert_same_value(world, "the tokenizer", "bytes" if world.rank == 0 else "bpe")
except sync.ReplicasDiffer as error:
    print(json.dumps({"said": str(error)}))
"""
    said = "the tokenizer differs: rank 0 has 'bytes', rank 1 has 'bpe'"
    assert on_ranks(body).results == {0: {"said": said}, 1: {"said": said}}
