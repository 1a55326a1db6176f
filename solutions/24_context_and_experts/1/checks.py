"""24.1: two blocks of attention merged by their log-sum-exp, as ring attention does at each step."""

import math

from ddp_course.grader.vocabulary import check, driver_job, expect, expect_no_operations, expect_small_gap

from .driver import HEADS, QUERIES, SIZE

FUNCTION = "merge"
MODERATE = {"blocks of 5 and 5 keys": (5, 10), "blocks of 1 and 9 keys": (1, 10)}
OFFSETS = "scores around 20,000", "scores around -20,000", "the second block 3000 above the first", "queries 3000 apart"
LARGE = dict.fromkeys(OFFSETS, (4, 8))
MASKED = {"masked: query 0 sees block a only, queries 1 and 3 block b, query 2 neither": (4, 8)}
RINGS = ("a ring, in blocks", "a ring, in zigzag")
CLOSE = 1e-9
SHAPES = [[HEADS, QUERIES, SIZE], [HEADS, QUERIES]]

BLOCKS = driver_job(1, FUNCTION, {name: (name, *keys) for name, keys in (MODERATE | LARGE | MASKED).items()})
RING = driver_job(2, FUNCTION, {name: (name, 0, 0) for name in RINGS})
JOBS = [BLOCKS, RING]


@check("out is attention over both blocks", [BLOCKS], scenarios=MODERATE)
def the_output_is_that_of_both_blocks(case):
    [result] = case.results
    expect(
        result["shapes"] == SHAPES,
        f"merge returned tensors of shapes {result['shapes']}, not {SHAPES}",
        "what is returned: (out, lse), each shaped as it came in",
    )
    look_at = "a block's share, in float64, is exp(lse of the block) over the sum of both"
    expect_small_gap(result["out"], CLOSE, "out", look_at, "attention over both blocks")


@check("lse is that of both blocks", [BLOCKS], scenarios=MODERATE)
def the_lse_is_that_of_both_blocks(case):
    look_at = "the sums of exp(score) add up; lse is the log of a sum"
    expect_small_gap(case.results[0]["lse"], CLOSE, "lse", look_at, "that of both blocks")


@check("scores of thousands do no harm", [BLOCKS], scenarios=LARGE)
def large_scores_do_no_harm(case):
    expect_both(case, "what goes into exp for each query: at most 0, and 0 for one of the two blocks")


@check("masked blocks count nothing", [BLOCKS], scenarios=MASKED)
def masked_blocks_count_nothing(case):
    expect_both(
        case,
        "-inf minus -inf is NaN: which of the differences can be that?"
        if case.results[0]["nan"]
        else "a masked block counts nothing; where both are masked, lse is -inf again",
    )


def expect_both(case, look_at):
    """Raise Wrong unless out and lse are those of attention over both blocks, without NaN."""
    [result] = case.results
    name = max(("out", "lse"), key=result.get)
    expect(not result["nan"], f"{result['nan']} numbers of out and lse are NaN", look_at)
    expect_small_gap(result[name], CLOSE, name, look_at, "that of both blocks")


@check("gradients are right, and finite where nothing is seen", [BLOCKS])
def the_gradients_are_right(case):
    name, gap = max(case.results[0]["gradients"].items(), key=lambda item: item[1])
    missing = gap == math.inf
    expect(
        gap < CLOSE,
        f"the gradient of {name} {'is missing or not finite' if missing else f'is {gap:.1e} away from the right one'}",
        "backward goes through both sides of a torch.where: the gradient of log(0), of -inf minus -inf"
        if missing and case.scenario in MASKED
        else "every path from the four arguments to out and to lse; both go into the next merge",
    )


@check("a ring of two ranks equals one process, forward and backward", [RING])
def a_ring_equals_one_process(case, rank, result):
    look_at = "merge works on this rank's queries only: nothing is to be sent or averaged"
    for name, gap in result.items():
        expect_small_gap(gap, CLOSE, f"{name} on rank {rank}", look_at)
    expect_no_operations(rank, case.operations[rank], look_at)
