"""20.4: a table sharded by rows; only what the different ids need is sent, and each row is moved once, by its owner."""

from itertools import pairwise

import torch

from ddp_course.grader.vocabulary import check, driver_job, expect, expect_few_bytes, show

from .driver import CASES, DIFFERENT, MANY, WIDTH, one_process, start

SCENARIOS = {world: [name for name, (bounds, _) in CASES.items() if len(bounds) == world + 1] for world in (2, 3, 4)}
JOBS = [driver_job(world, "ShardedTable", names) for world, names in SCENARIOS.items()]
STEPS = sum(len(steps) for _, steps in CASES.values())
MAX_GATHERED = 512  # bytes: enough for counts, however they are packed, and too few for the ids


def steps_of(case):
    """For each step: number, ids and rows by rank, the whole table before and after it, and that of one process."""
    bounds, steps = CASES[case.scenario]
    before = torch.nn.functional.pad(start(bounds), (0, 1))
    results = zip(*case.results, strict=True)
    for step, (ids, by_rank, right) in enumerate(zip(steps, results, one_process(case.scenario), strict=True)):
        rows, shards = zip(*by_rank, strict=True)
        yield step, ids, rows, before, (after := torch.cat(shards)), right
        before = after


@check("lookup returns the rows of the whole table, in the order of the ids")
def lookup_returns_the_rows(case):
    for step, ids, rows_by_rank, table, _, _ in steps_of(case):
        for rank, rows in enumerate(rows_by_rank):
            expect(
                torch.equal(rows, table[ids[rank]][:, :WIDTH]),
                f"in step {step} rank {rank} looked up {show(ids[rank])} and got other rows",
                "which rank owns a row, its index in that shard, and where in the batch it belongs",
            )


@check("only rows that were looked up move, and their accumulators")
def only_used_rows_move(case):
    for step, ids, _, before, after, _ in steps_of(case):
        moved = set((before != after).any(dim=1).nonzero().flatten().tolist()).difference(*ids)
        expect(
            not moved,
            f"step {step} changed the rows {show(sorted(moved))}, which no rank had looked up",
            "what changes all rows of a shard?",
        )


@check(f"{STEPS} steps on 2 to 4 ranks equal those of one process, accumulators and table")
def equals_one_process(case):
    for step, _, _, _, after, right in steps_of(case):
        for columns, name, look_at in (
            (slice(WIDTH, None), "the accumulator of row", "sum over repeated ids and ranks, square, mean"),
            (slice(WIDTH), "row", "one move for each row, by the accumulator as it is after the step"),
        ):
            gap, row = (after - right)[:, columns].abs().amax(dim=1).max(dim=0)
            look_at = "where 1e-8 is added: to the root, not below it" if gap < 1e-7 else look_at
            expect(gap < 1e-10, f"after step {step} {name} {row} is off by {show(gap, 3)}", look_at)


@check(
    lambda sent: f"a rank sends at most {max(sent):,} bytes for 400 ids of which {DIFFERENT} differ", scenarios=[MANY]
)
def little_is_sent(case, rank, result):
    operations, purpose = case.operations[rank], f" for {DIFFERENT} different ids"
    gathers = [operation for operation in operations if operation.op == "all_gather"]
    look_at = "all ranks get these bytes. Who needs an id, or a row's sum? Only the owner of the row"
    expect_few_bytes(rank, gathers, MAX_GATHERED, purpose, look_at)
    bounds, [batches] = CASES[MANY]
    rows_sent = max(sum(first <= row < end for ids in batches for row in set(ids)) for first, end in pairwise(bounds))
    # Two times the ids, and the gradients; the rows that an owner is asked for; counts.
    limit = DIFFERENT * (2 * 8 + 8 * WIDTH) + rows_sent * 8 * WIDTH + 256
    look_at = "each id once, to its owner; each row's sum once"
    return expect_few_bytes(rank, operations, limit, purpose, look_at, without=("recv",))
