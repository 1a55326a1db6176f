"""20.3: the sparse sign-SGD step: one process's update for any number of ids on any rank, at the price of the batch."""

import torch

from ddp_course.base.quantity import with_prefix
from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

from . import driver
from .driver import CANCELS, DECAY, EVALUATES, LARGE, LR, ROUNDS

FUNCTION = "SparseTable"
CLOSE = 1e-10  # float64, and moves that are multiples of the learning rate
TABLE_BYTES = driver.LARGE_ROWS * driver.LARGE_WIDTH * 4
# 2 steps with 4 ids of 8 bytes and 4 rows of 8 x 4, four times over, and notes on them: counts, pickled objects.
LARGE_STEPS = f"2 steps with 4 ids or fewer on a rank, on a table of {with_prefix(TABLE_BYTES, 'B')}: "
SENT = 2 * (4 * 4 * (8 + 8 * 4) + 2_000)
LARGEST = driver.LARGE_ROWS // 2  # bytes: less than one for each row


def job(world, *whats):
    return Job(world, FUNCTION, tuple(Call([(what,)] * world, what) for what in whats), seconds=2.5, driver=True)


ON_TWO = tuple(driver.CASES)[:-2]
JOBS = [job(2, *ON_TWO, EVALUATES, CANCELS, ROUNDS, LARGE), job(3, "three ranks"), job(4, "four ranks", LARGE)]


def it_returns_the_rows(records):
    """Calling the table returns the rows of the ids, in training and under no_grad."""
    for case in watched(records, "trained"):
        for rank, result in enumerate(case.results):
            for name, ids in (("trained", [2, 1, 2]), ("seen", [4, 5, 5])):
                right = driver.start()[ids]
                if result[name].shape != right.shape or not torch.equal(result[name], right):
                    raise Wrong(
                        f"{case.where}for the ids {ids} rank {rank} got vectors of shape {tuple(result[name].shape)} "
                        f"that are not the rows of the table, of shape {tuple(right.shape)}",
                        "what __call__ returns: table[ids], a row for each id, also for one that occurs twice",
                    )
    return "the vectors are the rows of the table"


def only_used_rows_move(records):
    """A row that no rank has trained on since the last step keeps its bits; weight decay does not touch it."""
    for case in watched(records, "tables"):
        for rank, result in enumerate(case.results):
            before = driver.start()
            for step, (table, used) in enumerate(zip(result["tables"], used_rows(case), strict=True), 1):
                moved = (table != before).any(dim=1).nonzero().flatten().tolist()
                if more := sorted(set(moved) - used):
                    row = more[0]
                    raise Wrong(
                        f"{case.where}step {step} moved row {row} on rank {rank}, by {(table - before)[row, 0]:+.3g}; "
                        f"{'only the rows ' + ', '.join(map(str, sorted(used))) if used else 'none'} had a gradient",
                        look_at_row(case, row),
                    )
                before = table
    return "a row moves only in a step that had a gradient for it"


def equals_one_process(records):
    """After every step each rank holds the table of one process that takes the batches of all ranks."""
    for case in watched(records, "tables"):
        if case.given == ROUNDS:
            continue
        rights = expected(case)
        for rank, result in enumerate(case.results):
            for step, (table, right) in enumerate(zip(result["tables"], rights, strict=True), 1):
                wrong = (~((table - right).abs() < CLOSE)).nonzero().tolist()
                if wrong:
                    row = wrong[0][0]
                    numbers = [f"{one:.4g}" for one in table[row].tolist()]
                    wanted = [f"{one:.4g}" for one in right[row].tolist()]
                    raise Wrong(
                        f"{case.where}after step {step} row {row} on rank {rank} is ({', '.join(numbers)}), not "
                        f"({', '.join(wanted)})",
                        look_at_step(case, step, table, right, row),
                    )
    return f"every step on 2, 3 and 4 ranks equals that of one process, in {len(driver.CASES) + 2} cases"


def replicas_agree(records):
    """All ranks hold the same bits, also where a sum of floats depends on its order."""
    for case in watched(records, "tables"):
        for rank, result in enumerate(case.results):
            for table, first in zip(result["tables"], case.results[0]["tables"], strict=True):
                if not torch.equal(table, first):
                    gap = (table - first).abs().max() / LR
                    raise Wrong(
                        f"{case.where}rank {rank} and rank 0 are {gap:.3g} learning rates apart after a step",
                        "a sum of floats depends on its order: every rank has to add in the same one",
                    )
    return "all ranks hold the same bits"


def traffic_is_that_of_the_batch(records):
    """A rank hands over its ids and gradients and a few notes on them, whatever the size of the table."""
    worst = 0
    for case in watched(records, "bytes"):
        for rank, mine in enumerate(case.operations):
            sent = sum(one.bytes for one in mine)
            if sent > SENT:
                most = max(mine, key=lambda one: one.bytes)
                raise Wrong(
                    f"{case.where}{LARGE_STEPS}rank {rank} handed over {sent:,} bytes, {most.bytes:,} of them to one "
                    f"{most.op} (line {most.line})",
                    "what has to travel: the ids that were used, and their gradients",
                )
            worst = max(worst, sent)
    return f"a rank hands over at most {worst:,} bytes in two steps on a table of {with_prefix(TABLE_BYTES, 'B')}"


def work_is_that_of_the_batch(records):
    """Neither a forward, nor a backward, nor a step makes a tensor as large as the table, or with a value a row."""
    worst = 0
    for case in watched(records, "bytes"):
        for rank, result in enumerate(case.results):
            if result["bytes"] > LARGEST:
                raise Wrong(
                    f"{case.where}{LARGE_STEPS}rank {rank} made a tensor of {result['bytes']:,} bytes "
                    f"({result['made_by']})",
                    "a sum over duplicates needs a row for each id that was used, not one for each row of the table",
                )
            worst = max(worst, result["bytes"])
    return f"and makes no tensor larger than {worst:,} bytes on the way"


CHECKS = [
    it_returns_the_rows,
    only_used_rows_move,
    equals_one_process,
    replicas_agree,
    traffic_is_that_of_the_batch,
    work_is_that_of_the_batch,
]


def watched(records, key):
    return [case for case in cases(records) if key in case.results[0]]


def used_rows(case):
    """For each step of the case the rows that a rank has trained on."""
    if case.given == EVALUATES:
        return [{1, 2}]
    if case.given == ROUNDS:
        return [{3}]
    if case.given == CANCELS:
        return [{3, 5}]
    plan = driver.CASES[case.given]
    return [{row for ranks in step for ids in ranks for row in ids} for step in plan]


def expected(case):
    if case.given not in (EVALUATES, CANCELS):
        return driver.alone(case.given)
    table = driver.start()
    if case.given == CANCELS:
        table[[3, 5]] *= 1 - LR * DECAY
        return [table]
    table[[1, 2]] = table[[1, 2]] * (1 - LR * DECAY) - LR
    return [table]


def look_at_row(case, row):
    if case.given == EVALUATES and row in (4, 5, 6):
        return "a row that was read and not trained on: what does a forward pass without a backward leave behind?"
    if row == 0 and case.given != EVALUATES:
        return "row 0 is nobody's: does padding reach the table? A gradient of zero still decays its row"
    return "weight decay belongs to the rows that were used in this step; is everything older forgotten?"


def look_at_step(case, step, table, right, row):
    before = (expected(case)[step - 2] if step > 1 else driver.start())[row]
    kept = right[row] - before * (1 - LR * DECAY)  # -lr * sign
    if torch.allclose(table[row], before) and case.given == CANCELS:
        return "a gradient of zero is a gradient, also one that is zero as a sum: its row decays"
    if torch.allclose(table[row], before):
        return "this row should have moved: are all ids of all ranks still there after gathering?"
    if torch.allclose(table[row], before + kept):
        return "the weight decay: row * (1 - lr * weight_decay), in the same step"
    moved = (table[row] - before * (1 - LR * DECAY)) / LR
    if (moved.abs() > 1.5).any():
        return "one update for each row: how often is this one moved, or decayed?"
    return "row * (1 - lr * weight_decay) - lr * sign(sum of its gradients on all ranks, of all micro-batches)"
