"""Flight recorder dumps of gloo and of NCCL, read by one code; and what the recorder inside a rank may import."""

import ast
import pickle
import sys
from pathlib import Path

import pytest
from torch.distributed.flight_recorder.components.loader import read_dump
from torch.distributed.flight_recorder.components.types import Op

import ddp_course.doctor
from ddp_course.doctor import history
from ddp_course.errors import InputError

FOLDER = Path(ddp_course.doctor.__file__).parent


def entry(number, name="nccl:all_reduce", sizes=((1024, 1024),), line=41, p2p=0):
    """One entry with the fields that ProcessGroupNCCL writes."""
    return {
        "record_id": number - 1, "pg_id": 0, "process_group": ("0", "default_pg"), "thread_name": "python",
        "thread_id": "1", "collective_seq_id": number, "p2p_seq_id": p2p, "op_id": number, "profiling_name": name,
        "time_created_ns": 1_700_000_000_000_000_000 + number, "duration_ms": 0.2, "input_sizes": sizes,
        "input_dtypes": ["Float"], "output_sizes": sizes, "output_dtypes": ["Float"], "state": "completed",
        "time_discovered_started_ns": 1, "time_discovered_completed_ns": 2, "retired": True, "timeout_ms": 600000,
        "is_p2p": bool(p2p),
        "frames": [
            {"name": "all_reduce", "filename": "/x/site-packages/torch/distributed/distributed_c10d.py", "line": 3245},
            {"name": "step", "filename": "/home/me/train.py", "line": line},
            {"name": "<module>", "filename": "/home/me/train.py", "line": 90},
        ],
    }  # fmt: skip


def nccl_dump(*entries):
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": {f"last_{what}_collective": 1 for what in ("enqueued", "started", "completed")}},
        "entries": list(entries),
    }


def test_a_dump_of_nccl(tmp_path):
    file = tmp_path / "nccl_trace_rank_0"
    dump = nccl_dump(entry(1), entry(1, "nccl:send 0->1", p2p=1), entry(2, "nccl:_all_gather_base", ((3,),), line=52))
    file.write_bytes(pickle.dumps(dump))
    theirs = read_dump("nccl_trace_rank_", str(file))  # torch's own reader takes the same file
    assert Op(theirs["entries"][0], {"0": {0, 1}}, "0").type == "all_reduce"
    found = history.read(file)
    assert found.groups == {"0": (0, 1)} and found.whole
    first, second = found.collectives["0"]
    assert (first.name, first.number, first.sizes, first.dtypes) == ("all_reduce", 1, ((1024, 1024),), ("Float",))
    assert first.lines == (("/home/me/train.py", 41), ("/home/me/train.py", 90))
    assert (second.name, second.own[0].line) == ("all_gather_base", 52)
    assert found.newest == second


def test_a_dump_that_lost_its_beginning_says_so():
    assert not history.parse(nccl_dump(entry(5))).whole


@pytest.mark.parametrize("content", [b"", b"{", b'{"entries": [1]}', pickle.dumps(7), pickle.dumps(print)])
def test_what_is_no_dump(tmp_path, content):
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
