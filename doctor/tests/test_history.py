"""Flight recorder dumps of gloo and of NCCL; and what the recorder inside a rank may import."""

import ast
import gc
import pickle
import sys
from pathlib import Path

import ddp_doctor
import pytest
from ddp_doctor import history
from ddp_doctor.alignment import differences
from ddp_doctor.errors import InputError
from forked_ranks import run_ranks
from torch.distributed.flight_recorder import fr_trace as torchfrtrace
from torch.distributed.flight_recorder.components.loader import read_dump
from torch.distributed.flight_recorder.components.types import Op

FOLDER = Path(ddp_doctor.__file__).parent
RECORDED = Path(__file__).with_name("recorded_script.py")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """torch's own dumps of two ranks, as bytes: gloo and NCCL have one recorder, FlightRecorder.hpp."""
    folder = tmp_path_factory.mktemp("recorded")
    run_ranks(RECORDED, folder, nproc=2)
    return [(folder / str(rank)).read_bytes() for rank in range(2)]


def as_nccl(dump: bytes) -> dict:
    """A dump of gloo with the fields of ProcessGroupNCCL, as torch's test/distributed/test_c10d_nccl.py expects them.

    Its first collective has finished.
    """
    nccl_dump = pickle.loads(dump)
    nccl_dump["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    nccl_dump["comm_lib_version"] = "2.29.7"
    nccl_dump["nccl_comm_state"] = {"0x55d0c0ffee": {"rank": "0", "nranks": "2", "initialized": "1"}}
    for number, record in enumerate(nccl_dump["entries"]):
        record["profiling_name"] = record["profiling_name"].replace("gloo:", "nccl:")
        done = number == 0
        record |= {"state": "completed", "duration_ms": 0.2} if done else {"state": "scheduled", "retired": False}
        record |= {"timeout_ms": 600_000, "time_discovered_completed_ns": 2 if done else None}
    return nccl_dump


def entry(recorded, number, name="nccl:all_reduce", sizes=((1024, 1024),), p2p=0):
    """An entry of a dump. p2p: its number among the point-to-point messages, 0 for a collective."""
    template = as_nccl(recorded[0])["entries"][0]
    return template | {
        "record_id": number - 1,
        "op_id": number,
        "profiling_name": name,
        "collective_seq_id": number,
        "p2p_seq_id": p2p,
        "is_p2p": bool(p2p),
        "input_sizes": sizes,
        "output_sizes": sizes,
    }


def test_torchfrtrace_reads_the_same_collectives(recorded, tmp_path, monkeypatch, caplog):
    files = [tmp_path / f"nccl_trace_rank_{rank}" for rank in range(2)]
    for file, dump in zip(files, recorded, strict=True):
        file.write_bytes(pickle.dumps(as_nccl(dump)))
    monkeypatch.setattr(gc, "disable", lambda: None)  # torchfrtrace turns the garbage collector off
    torchfrtrace.main([str(tmp_path), "--prefix", "nccl_trace_rank_", "-o", str(tmp_path / "database")])
    _, database = pickle.loads((tmp_path / "database").read_bytes())
    assert "internal record id: 2" in caplog.text and "missing ranks: {1}" in caplog.text  # it blames the last one
    histories = [history.read(file) for file in files]
    for rank, own_history in enumerate(histories):
        assert own_history.groups == {"0": (0, 1)} and own_history.complete
        calls = [call for call in database.ncclcalls if call.global_rank == rank]
        assert [call.collective_type for call in calls] == [
            f"nccl:{collective.name}" for collective in own_history.collectives["0"]
        ]
    source = RECORDED.read_text().splitlines()
    [first] = differences(dict(enumerate(histories)), {})
    assert (first.collective.number, first.have, first.lack) == (2, (0,), (1,))
    assert "# SKIPPED" in source[first.collective.own[0].line - 1]


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_dump_of_each_backend(recorded, tmp_path, backend):
    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(recorded[0] if backend == "gloo" else pickle.dumps(as_nccl(recorded[0]), protocol=2))
    first, second, third = history.read(file).collectives["0"]
    assert [collective.number for collective in (first, second, third)] == [1, 2, 3]
    assert {(collective.name, collective.sizes, collective.dtypes) for collective in (first, second, third)} == {
        ("all_reduce", ((3, 4),), ("Float",))
    }
    assert first.own[0].file == str(RECORDED) and first.own[0].function == "train"


def test_names_and_messages_of_nccl(recorded, tmp_path):
    file = tmp_path / "nccl_trace_rank_0"
    gathers = entry(recorded, 2, "nccl:_all_gather_base", ((3,),))
    barrier = entry(recorded, 3, "nccl:all_reduce_barrier", ((1,),))
    records = [entry(recorded, 1), entry(recorded, 1, "nccl:send 0->1", p2p=1), gathers, barrier]
    file.write_bytes(pickle.dumps(as_nccl(recorded[0]) | {"entries": records}))
    torch_records = read_dump("nccl_trace_rank_", str(file))["entries"]
    kinds = [Op(record, {"0": {0, 1}}, "0").type for record in torch_records]
    assert kinds[:3] == ["all_reduce", "send", "_all_gather_base"]
    parsed = history.read(file)
    names = [record.name for record in parsed.collectives["0"]]
    assert names == ["all_reduce", "all_gather_base", "all_reduce_barrier"]
    assert parsed.newest == parsed.collectives["0"][-1] and parsed.collectives["0"][1].sizes == ((3,),)


def test_a_dump_without_its_first_entries_is_not_whole(recorded):
    assert not history.parse(as_nccl(recorded[0]) | {"entries": [entry(recorded, 5)]}).complete


@pytest.mark.parametrize("content", [b"", b"{", b'{"entries": [1]}', pickle.dumps(7), pickle.dumps(print)])
def test_other_files_are_refused(tmp_path, content):
    file = tmp_path / "dump"
    file.write_bytes(content)
    with pytest.raises(InputError, match="no flight recorder dump"):
        history.read(file)


@pytest.mark.parametrize("file", ["recorder.py", "inside/sitecustomize.py"])
def test_what_runs_inside_a_rank_needs_the_standard_library_only(file):
    for node in ast.walk(ast.parse((FOLDER / file).read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        assert all(name.partition(".")[0] in sys.stdlib_module_names for name in names), names
