"""The sparse embedding on real ranks: the published step to the last bit, and the same traffic for a larger table."""

import pytest
import torch
import warm

from ddp_course.distributed.process_group import World
from ddp_course.distributed.sparse_embedding import SparseEmbedding, SparseSignSGD

SCRIPT = '''
import json
import torch
import torch.distributed as dist
from ddp_course.distributed import process_group
from ddp_course.distributed.replica_check import assert_replicas_equal
from ddp_course.distributed.sparse_embedding import SparseEmbedding, SparseSignSGD

world = process_group.start(timeout_seconds=600)
results = {}


def reference(table, ids, gradients, lr, weight_decay):
    """The published step on one process: a dense sum over all ranks' ids, one sign, decay of the used rows alone."""
    total, used = torch.zeros_like(table), torch.zeros(len(table), dtype=torch.bool)
    for row, gradient in zip(ids.tolist(), gradients, strict=True):
        total[row] += gradient
        used[row] = True
    decayed = table * (1.0 - lr * weight_decay)
    return torch.where(used[:, None], decayed.add(torch.sign(total), alpha=-lr), table)


def shares(step, ranks):
    """Every rank's ids and gradients, known to all: uneven numbers, duplicates in and over ranks, empty ranks."""
    random = torch.Generator().manual_seed(step)
    counts = [(5 * rank + 3 * step) % 7 for rank in range(ranks)]
    counts = [0 if (rank + step) % 4 == 3 else count for rank, count in enumerate(counts)]
    return [(torch.randint(9, (count,), generator=random), torch.randn(count, 4, generator=random)) for count in counts]


def take_step(embedding, optimizer, ids, gradients):
    """A forward and a backward pass with these gradients, and an optimizer step."""
    (embedding(ids) * gradients.to(embedding.table.dtype)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


for dtype in (torch.float32, torch.float64):
    torch.manual_seed(1)
    embedding = SparseEmbedding(12, 4, dtype=dtype)  # no rank uses the last three rows
    optimizer = SparseSignSGD(embedding, world, lr=0.05, weight_decay=0.2)
    expected, start, used, equal = embedding.table.clone(), embedding.table.clone(), set(), True
    for step in range(8):
        all_shares = shares(step, world.size)
        ids = torch.cat([ids for ids, _ in all_shares])
        gradients = torch.cat([gradients for _, gradients in all_shares]).to(dtype)
        used |= set(ids.tolist())
        take_step(embedding, optimizer, *all_shares[world.rank])
        expected = reference(expected, ids, gradients, 0.05, 0.2)
        equal = equal and torch.equal(embedding.table, expected)
    assert_replicas_equal(world, embedding, buffers=True)
    changed = (embedding.table != start).any(dim=1).nonzero().flatten().tolist()
    results[str(dtype)] = {"equal": equal, "changed": changed, "used": sorted(used)}

# Several forward passes before one step count together; one without a backward pass counts for nothing.
torch.manual_seed(1)
embedding = SparseEmbedding(9, 4)
parts, whole = SparseSignSGD(embedding, world, lr=0.05, weight_decay=0.2), embedding.table.clone()
ids, factors = torch.tensor([3, 3, 5]), torch.tensor([1.0, -3.0, 2.0])
for id, factor in zip(ids, factors):
    (embedding(id[None]) * factor).sum().backward()
embedding(torch.tensor([7]))
parts.step()
all_shares = ids.repeat(world.size), factors.repeat(world.size)[:, None].expand(-1, 4)
results["parts"] = torch.equal(embedding.table, reference(whole, *all_shares, 0.05, 0.2))

# No rank used a row: nothing moves. Opposite gradients cancel: the row decays and does not move.
before = embedding.table.clone()
parts.zero_grad()
parts.step()
results["unused rows stay"] = torch.equal(embedding.table, before)
take_step(embedding, parts, torch.tensor([2, 2]), torch.tensor([[1.0] * 4, [-1.0] * 4]))
results["cancelled"] = torch.equal(embedding.table[2], before[2] * (1 - 0.05 * 0.2))

sent, all_gather = [], dist.all_gather


def counted(outputs, tensor, *args, **kwargs):
    sent.append(tensor.nbytes * world.size)
    return all_gather(outputs, tensor, *args, **kwargs)


dist.all_gather = counted
results["traffic"] = {}
for rows in (10, 1000, 100_000):
    embedding = SparseEmbedding(rows, 4)
    sent.clear()
    take_step(embedding, SparseSignSGD(embedding, world, lr=0.05), torch.arange(5 + world.rank), torch.ones(1, 4))
    results["traffic"][rows] = sum(sent)
dist.all_gather = all_gather

embedding.eval()
embedding(torch.tensor([0]))
with torch.no_grad():
    embedding.train()(torch.tensor([0]))
results["remembered"] = len(embedding.used)
print(json.dumps(results))
process_group.stop()
'''


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of every rank: of one process, and of four."""
    script = tmp_path_factory.mktemp("script") / "script.py"
    script.write_text(SCRIPT)
    return {nproc: list(warm.ranks(script, nproc=nproc).results.values()) for nproc in (1, 4)}


@pytest.mark.parametrize("nproc", [1, 4])
def test_every_step_is_the_published_step_to_the_last_bit(results, nproc):
    """With duplicates in and over ranks, unlike numbers of ids, and ranks without any."""
    for result in results[nproc]:
        for dtype in ("torch.float32", "torch.float64"):
            assert result[dtype]["equal"], f"{dtype} differs from the reference"
            assert result[dtype]["changed"] == result[dtype]["used"]


@pytest.mark.parametrize("nproc", [1, 4])
def test_accumulation_empty_steps_and_cancelled_gradients(results, nproc):
    for result in results[nproc]:
        assert result["parts"], "micro-batches are not what one batch would be"
        assert result["unused rows stay"] and result["cancelled"]
        assert result["remembered"] == 0, "an evaluation is remembered for the next step"


def test_traffic_does_not_depend_on_the_table(results):
    for result in results[4]:
        assert 0 < result["traffic"]["10"] == result["traffic"]["1000"] == result["traffic"]["100000"]


def test_a_lookup_in_bfloat16_keeps_table_and_gradient_in_float32():
    world = World(0, 0, 1, torch.device("cpu"))
    tables = []
    for cast_to in (None, torch.bfloat16):
        torch.manual_seed(1)
        embedding = SparseEmbedding(9, 4, std=1.0, cast_to=cast_to)
        optimizer = SparseSignSGD(embedding, world, lr=0.1, weight_decay=0.1)
        vectors = embedding(torch.tensor([3, 5, 3]))
        assert vectors.dtype == (cast_to or torch.float32)
        (vectors.float() * torch.tensor([[1.0], [2.0], [-3.0]])).sum().backward()
        [(_, leaf)] = embedding.used
        assert leaf.dtype == leaf.grad.dtype == embedding.table.dtype == torch.float32
        optimizer.step()
        tables.append(embedding.table)
    assert torch.equal(*tables)
    embedding.eval()
    assert embedding(torch.tensor([1])).dtype == torch.bfloat16
