"""20.4: a table cut by rows over the ranks; only what different ids need travels, and each row's owner steps once."""

import torch

from ddp_course.grader.vocabulary import check, driver_job, expect, expect_little_is_sent, show

from .driver import CASES, MANY, WIDTH, one_process, start

OF_RANKS = {ranks: [name for name, (bounds, _) in CASES.items() if len(bounds) == ranks + 1] for ranks in (2, 3)}
JOBS = [driver_job(ranks, "ShardedTable", names) for ranks, names in OF_RANKS.items()]
STEPS = sum(len(steps) for _, steps in CASES.values())


def steps_of(case):
    """For each step: number, ids and rows by rank, the whole table before and after it, and that of one process."""
    bounds, steps = CASES[case.scenario]
    before = torch.nn.functional.pad(start(bounds), (0, 1))
    results = zip(*case.results, strict=True)
    for step, (ids, of_ranks, right) in enumerate(zip(steps, results, one_process(case.scenario), strict=True)):
        rows, shards = zip(*of_ranks, strict=True)
        yield step, ids, rows, before, (after := torch.cat(shards)), right
        before = after


@check("lookup returns the rows of the whole table, in the order of the ids")
def lookup_returns_the_rows(case):
    for step, ids, of_ranks, table, _, _ in steps_of(case):
        for rank, rows in enumerate(of_ranks):
            expect(torch.equal(rows, table[ids[rank]][:, :WIDTH]),
                   f"in step {step} rank {rank} looked up {show(ids[rank])} and got other rows",
                   "who owns a row, its number in that shard, and where in the batch it belongs")  # fmt: skip


@check("only rows that were looked up move, and their accumulators")
def only_used_rows_move(case):
    for step, ids, _, before, after, _ in steps_of(case):
        moved = set((before != after).any(dim=1).nonzero().flatten().tolist()).difference(*ids)
        expect(not moved, f"step {step} changed the rows {show(sorted(moved))}, which nobody had looked up",
               "what changes all rows of a shard?")  # fmt: skip


@check(f"{STEPS} steps on 2 and 3 ranks equal those of one process, accumulators and table")
def equals_one_process(case):
    for step, _, _, _, after, right in steps_of(case):
        for columns, name, look in (
            (slice(WIDTH, None), "the accumulator of row", "square what is summed over repeated ids and over ranks"),
            (slice(WIDTH), "row", "one move for each row, by the accumulator as it is after the step"),
        ):
            gap, row = (after - right)[:, columns].abs().amax(dim=1).max(dim=0)
            expect(gap < 1e-10, f"after step {step} {name} {row} is off by {show(gap, 3)}", look)


@check(lambda sent: f"a rank sends at most {max(sent):,} bytes for 400 ids of which 20 differ", scenarios=[MANY])
def little_is_sent(case):
    [batches], (_, bound, _) = CASES[MANY][1], CASES[MANY][0]
    asked = max(sum((row < bound) == first for ids in batches for row in set(ids)) for first in (True, False))
    limit = 20 * (2 * 8 + 8 * WIDTH) + asked * 8 * WIDTH + 256  # ids, also twice; gradients; rows; counts
    return expect_little_is_sent(case, limit, lambda _: "for 20 different ids", "each id once, each row's sum once")
