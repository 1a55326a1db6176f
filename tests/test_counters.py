"""Bytes that a rank holds, against tensors of known size; notebooks 17 and 17b count those that it sends."""

import pytest
import torch

from ddp_course.distributed.counters import held_bytes


@pytest.mark.smoke
def test_a_shared_storage_counts_once():
    whole = torch.ones(10)
    assert held_bytes([whole, whole[:5], None, torch.ones(3, dtype=torch.float64)]) == 40 + 24
