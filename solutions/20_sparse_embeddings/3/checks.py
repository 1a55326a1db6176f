"""20.3: the sparse sign-SGD step: that of one process, for any number of ids on any rank, at the price of the batch."""

import torch

from ddp_course.base.quantity import with_prefix
from ddp_course.grader.vocabulary import Wrong, check, driver_job, expect, total_bytes

from . import driver
from .driver import CANCELS, CASES, DECAY, EVALUATES, LARGE, LR, ROUNDS, one_process, start

FUNCTION = "SparseTable"
CLOSE = 1e-10  # float64; a move is a multiple of the learning rate
TABLE_BYTES = driver.LARGE_ROWS * driver.LARGE_WIDTH * 4
LARGE_STEPS = f"2 steps with 4 ids or fewer on a rank, on a table of {with_prefix(TABLE_BYTES, 'B')}: "
# In each of 2 steps 4 ids of 8 bytes and 4 rows of float32, four times, and 2,000 bytes for counts or pickled objects.
MAX_BYTES_SENT = 2 * (4 * 4 * (8 + driver.LARGE_WIDTH * 4) + 2_000)
MAX_TENSOR_BYTES = driver.LARGE_ROWS // 2  # less than one byte for each row
STEPS = CASES.keys() - {ROUNDS}  # what is compared with one process


def job(world, *more):
    scenarios = [name for name, steps in CASES.items() if len(steps[0]) == world]
    return driver_job(world, FUNCTION, [*scenarios, *more], seconds=2.5)


JOBS = [job(2, LARGE), job(3), job(4, LARGE)]


@check("the vectors are the rows of the table", scenarios=[EVALUATES])
def it_returns_the_rows(case, rank, result):
    for name, ids in (("trained", [2, 1, 2]), ("evaluated", [4, 5, 5])):
        right = start()[ids]
        expect(
            torch.equal(result[name], right),
            f"for the ids {ids} rank {rank} got vectors of shape {tuple(result[name].shape)} that are not the rows of "
            f"the table, of shape {tuple(right.shape)}",
            "what __call__ returns: table[ids], a row for each id, also for one that occurs twice",
        )


@check("a row moves only in a step that had a gradient for it", scenarios=CASES)
def only_used_rows_move(case, rank, result):
    old = start()
    for step, (table, batches_by_rank) in enumerate(zip(result["tables"], CASES[case.scenario], strict=True), 1):
        used = {row for batches in batches_by_rank for ids in batches for row in ids}
        moved = (table != old).any(dim=1).nonzero().flatten().tolist()
        for row in sorted(set(moved) - used):
            raise Wrong(
                f"step {step} moved row {row} on rank {rank}, by {(table - old)[row, 0]:+.3g}; "
                f"{'only the rows ' + ', '.join(map(str, sorted(used))) if used else 'none'} had a gradient",
                look_at_row(case, row),
            )
        old = table


@check(f"every step on 2, 3 and 4 ranks equals that of one process, in {len(STEPS)} cases", scenarios=STEPS)
def equals_one_process(case):
    right_tables = one_process(case.scenario)
    for rank, result in enumerate(case.results):
        for step, (table, right) in enumerate(zip(result["tables"], right_tables, strict=True), 1):
            for row in (~((table - right).abs() < CLOSE)).any(dim=1).nonzero().flatten().tolist():
                text, right_text = (", ".join(f"{number:.4g}" for number in t[row].tolist()) for t in (table, right))
                raise Wrong(
                    f"after step {step} row {row} on rank {rank} is ({text}), not ({right_text})",
                    look_at_step(case, step, table, right, row),
                )


@check("all ranks hold the same bits", scenarios=CASES)
def replicas_agree(case, rank, result):
    for table, first in zip(result["tables"], case.results[0]["tables"], strict=True):
        expect(
            torch.equal(table, first),
            f"rank {rank} and rank 0 are {(table - first).abs().max() / LR:.3g} learning rates apart after a step",
            "a sum of floats depends on its order: every rank has to add in the same one",
        )


@check(
    lambda sent: (
        f"a rank hands over at most {max(sent):,} bytes in two steps on a table of {with_prefix(TABLE_BYTES, 'B')}"
    ),
    scenarios=[LARGE],
)
def traffic_is_that_of_the_batch(case, rank, result):
    operations = case.operations[rank]
    sent = total_bytes(operations)
    if sent > MAX_BYTES_SENT:
        largest = max(operations, key=lambda operation: operation.bytes)
        raise Wrong(
            f"{LARGE_STEPS}rank {rank} handed over {sent:,} bytes, {largest.bytes:,} of them to one {largest.op} "
            f"(line {largest.line})",
            "what has to be sent: the ids that were used, and their gradients",
        )
    return sent


@check(lambda made: f"and makes no tensor larger than {max(made):,} bytes on the way", scenarios=[LARGE])
def work_is_that_of_the_batch(case, rank, result):
    expect(
        result["bytes"] <= MAX_TENSOR_BYTES,
        f"{LARGE_STEPS}rank {rank} made a tensor of {result['bytes']:,} bytes ({result['made_by']})",
        "a sum over duplicates needs a row for each id that was used, not one for each row of the table",
    )
    return result["bytes"]


def look_at_row(case, row):
    if case.scenario == EVALUATES and row in (4, 5, 6):
        return "a row that was read and not trained on: what does a forward pass without a backward leave behind?"
    if row == 0 and case.scenario != EVALUATES:
        return "no rank uses row 0: does padding reach the table? A gradient of zero still decays its row"
    return "weight decay is for the rows that were used in this step: are those of older steps forgotten?"


def look_at_step(case, step, table, right, row):
    old = (one_process(case.scenario)[step - 2] if step > 1 else start())[row]
    move = right[row] - old * (1 - LR * DECAY)  # the move without the decay: -lr * sign
    if torch.allclose(table[row], old) and case.scenario == CANCELS:
        return "a gradient of zero is a gradient, also one that is zero as a sum: its row decays"
    if torch.allclose(table[row], old):
        return "this row should have moved: are all ids of all ranks still there after gathering?"
    if torch.allclose(table[row], old + move):
        return "the weight decay: row * (1 - lr * weight_decay), in the same step"
    moves = (table[row] - old * (1 - LR * DECAY)) / LR
    if (moves.abs() > 1.5).any():
        return "how often is this row moved, or decayed? It should be once"
    return "row * (1 - lr * weight_decay) - lr * sign(sum of its gradients on all ranks, of all micro-batches)"
