"""Bytes that a rank holds and has sent, against tensors and messages of known size."""

import pytest
import torch
import warm

from ddp_course.distributed.counters import held_bytes

RING = """
import json
import torch
import torch.distributed as dist
from ddp_course.distributed import process_group
from ddp_course.distributed.counters import sent_bytes, sent_to_ranks

world = process_group.start(timeout_seconds=30)
tensor = torch.ones(1_000_000, dtype=torch.float64)
dist.all_reduce(tensor)
start = sent_bytes()
dist.all_reduce(tensor)
sent, to = sent_bytes() - start, sent_to_ranks()
dist.all_reduce(tensor)
to = {rank: bytes - to[rank] for rank, bytes in sent_to_ranks().items()}
print(json.dumps({"sent": sent, "to": to}))
process_group.stop()
"""


@pytest.mark.smoke
def test_a_shared_storage_counts_once():
    whole = torch.ones(10)
    assert held_bytes([whole, whole[:5], None, torch.ones(3, dtype=torch.float64)]) == 40 + 24


@pytest.mark.parametrize("ranks", [2, 3])
def test_an_all_reduce_of_8_mb_sends_what_a_ring_sends(tmp_path, ranks):
    (tmp_path / "script.py").write_text(RING)
    results = warm.ranks(tmp_path / "script.py", nproc=ranks).results
    for result in results.values():
        assert result["sent"] == pytest.approx(2 * (ranks - 1) / ranks * 8e6, rel=0.02)
        assert sum(result["to"].values()) == pytest.approx(result["sent"], rel=0.02)
        assert max(result["to"].values()) == pytest.approx(result["sent"], rel=0.02)  # all to the next in the ring
