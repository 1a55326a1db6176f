"""All of torch's flight recorders are read. Before 2.15 only NCCL has one besides gloo's, then each backend has one.

No GPU is needed: stand-ins answer as torch's functions and its debug server do.
"""

import json
import pickle
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
import torch.distributed  # noqa: F401  the recorder looks whether the script has imported it
from ddp_doctor import debug_server, history, recorder, records
from ddp_doctor.job import Rank

EMPTY = {"entries": [], "pg_status": {}}


def dump(backend: str, count: int) -> dict:
    """The dump of a rank that has started `count` all-reduces and finished all but the last."""
    entries = [
        {
            "record_id": number,
            "collective_seq_id": number + 1,
            "process_group": ["0", "default_pg"],
            "profiling_name": f"{backend}:all_reduce",
            "input_sizes": [[4]],
            "input_dtypes": ["Float"],
        }
        for number in range(count)
    ]
    status = {"last_enqueued_collective": str(count), "last_completed_collective": str(count - 1)}
    return {"entries": entries, "pg_status": {"0": status}}


# Stand-ins for torch's functions. The docstrings are torch's: they show the recorder whether one takes a backend.
def empty_dump(collectives=None, stacks=None, active=None):
    """(includeCollectives: bool | None = None) -> bytes"""
    return pickle.dumps(EMPTY)


def nccl_dump(collectives=None, stacks=None, active=None):
    return pickle.dumps(dump("nccl", 3))


def nccl2_dump(collectives=None, stacks=None, active=None, backend="gloo"):
    """(includeCollectives: bool | None = None, backend: str = 'gloo') -> bytes"""
    return pickle.dumps(dump("nccl2", 3) if backend == "nccl2" else EMPTY)


def empty_dump_of_any_backend(collectives=None, stacks=None, active=None, backend="gloo"):
    """(includeCollectives: bool | None = None, backend: str = 'gloo') -> bytes"""
    return pickle.dumps(EMPTY)


VERSIONS = {
    "2.13, nccl": {"_dump_fr_trace": empty_dump, "_dump_nccl_trace": nccl_dump},
    "2.15, nccl is nccl2": {"_dump_fr_trace": nccl2_dump, "_dump_nccl_trace": empty_dump},
    "2.15, TORCH_DIST_USE_NCCL2=0": {"_dump_fr_trace": empty_dump_of_any_backend, "_dump_nccl_trace": nccl_dump},
}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_recorder_inside_a_rank_asks_each_recorder_of_torch(version, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace(**VERSIONS[version]))
    inside = recorder.Recorder(tmp_path)
    assert inside.read_progress() == {"0": [3, 2]}
    inside.write_history()
    [collectives] = history.read(f"{inside.path}.history").collectives.values()
    assert [(each.number, each.name) for each in collectives] == [(number, "all_reduce") for number in (1, 2, 3)]
    inside.fatal.close()


def test_groups_are_recorded_though_no_look_falls_into_or_between_them(tmp_path, monkeypatch):
    groups = [SimpleNamespace(size=lambda: 2, rank=lambda: 1) for _ in range(2)]
    inside = recorder.Recorder(tmp_path)
    for group in groups:
        monkeypatch.setattr(recorder, "_world", lambda group=group: SimpleNamespace(default_pg=group))
        inside.note_shutdown(group)
    assert records.ranks_by_pid(tmp_path) == {inside.pid: 1}
    events = records.events_in(tmp_path / f"{inside.pid}.events")
    assert [event["event"] for event in events] == ["group", "group destroyed"] * 2
    inside.fatal.close()


def answers(version: str, path: str) -> dict:
    """The dump on a page of torch's debug server. Before 2.15 the server ignores the query."""
    page, _, query = path.partition("?")
    if page == "/fr_trace_nccl_json":
        return dump("nccl", 3) if version == "2.13" else EMPTY
    return dump("nccl2", 3) if version == "2.15" and query == "backend=nccl2" else dump("gloo", 1)


@pytest.mark.parametrize("version", ["2.13", "2.15"])
def test_the_debug_server_is_asked_for_each_recorder(version):
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"<h2>Rank 0: x</h2><pre>{json.dumps(answers(version, self.path))}</pre>".encode())

        def log_message(self, *_):
            pass

    ranks = {0: Rank(rank=0, pid=1)}
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        debug_server.read(ranks, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert ranks[0].progress == {"0": (3, 2)} and len(ranks[0].history.collectives["0"]) == 3
