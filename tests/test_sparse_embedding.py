"""The sparse embedding on real ranks: equal to one process, and no dearer for a larger table."""

import pytest

from ddp_course.lab.launch import torchrun

SCRIPT = '''
import json
import torch
import torch.distributed as dist
from ddp_course.parallel import process_group
from ddp_course.parallel.process_group import World
from ddp_course.parallel.sparse_embedding import SparseEmbedding, SparseSignSGD
from ddp_course.parallel.sync import assert_replicas_equal

world = process_group.start(timeout_seconds=30)
ALONE = World(0, 0, 1, world.device)
sent = []


def counted(real):
    def call(outputs, tensor, *args, **kwargs):
        sent.append(tensor.nbytes * world.size)
        return real(outputs, tensor, *args, **kwargs)
    return call


dist.all_gather = counted(dist.all_gather)


def batch(step, rows):
    """ids with duplicates inside a rank and over ranks, and what the loss multiplies them by."""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(rows, (24,), generator=generator), torch.randn(24, 4, generator=generator).double()


def train(who, rows=9, steps=5, seed=0):
    torch.manual_seed(seed)
    embedding = SparseEmbedding(rows, 4, dtype=torch.float64)
    optimizer = SparseSignSGD(embedding, who, lr=0.01, weight_decay=0.1)
    start, used = embedding.table.clone(), set()
    for step in range(steps):
        ids, factors = batch(step, rows)
        used |= set(ids.tolist())
        # Uneven shares: rank r takes every W-th id, and the last rank nothing at all in step 3.
        share = slice(who.rank, None, who.size)
        if who.size > 1 and step == 3:
            share = slice(0, 0) if who.rank == who.size - 1 else slice(who.rank, None, who.size - 1)
        for micro in range(2):
            (embedding(ids[share][micro::2]) * factors[share][micro::2]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return embedding, start, used


embedding, start, used = train(world)
alone, _, _ = train(ALONE)
changed = (embedding.table != start).any(dim=1).nonzero().flatten().tolist()
assert_replicas_equal(world, embedding, buffers=True)
traffic = {}
for rows in (10, 100_000):
    sent.clear()
    train(world, rows)
    traffic[rows] = sum(sent)
embedding.eval()
embedding(torch.tensor([0]))
print(json.dumps({
    "gap": (embedding.table - alone.table).abs().max().item(), "changed": changed, "used": sorted(used),
    "traffic": traffic, "remembered in evaluation": len(embedding.used),
}))
process_group.stop()
'''


@pytest.mark.parametrize("nproc", [1, 2, 4])
def test_equals_one_process_on_the_joint_batch(tmp_path, nproc):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for result in torchrun(script, nproc=nproc, quiet=True, timeout=60).results.values():
        assert result["gap"] == 0.0  # signs are exact; the sums behind them are never near zero here
        assert result["changed"] == result["used"]
        assert result["remembered in evaluation"] == 0
        assert result["traffic"]["10"] == result["traffic"]["100000"]
        assert (result["traffic"]["10"] > 0) == (nproc > 1)


ORIGINAL = '''
import json
import torch
from ddp_course.parallel import process_group
from ddp_course.parallel.sparse_embedding import SparseEmbedding, SparseSignSGD

world = process_group.start(timeout_seconds=30)
torch.manual_seed(1)
embedding = SparseEmbedding(7, 3)
optimizer = SparseSignSGD(embedding, world, lr=0.05, weight_decay=0.2)
expected = embedding.table.clone()
for step in range(4):
    ids = torch.randint(7, (5,))
    gradients = torch.randn(5, 3)
    (embedding(ids) * gradients).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    # The published update, row by row: decay, then the sign of the sum.
    for row in set(ids.tolist()):
        summed = gradients[ids == row].sum(dim=0)
        expected[row] = expected[row].mul(1 - 0.05 * 0.2).add(summed.sign(), alpha=-0.05)
print(json.dumps({"gap": (embedding.table - expected).abs().max().item()}))
process_group.stop()
'''


def test_the_update_is_the_published_one(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ORIGINAL)
    assert torchrun(script, nproc=1, quiet=True, timeout=60).results[0]["gap"] < 1e-7
