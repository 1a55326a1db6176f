"""18.3: the pairwise loss, weighted by density, with one normaliser over the global batch of all ranks."""

import math

from ddp_course.grader.harness.tensors import largest_gap
from ddp_course.grader.vocabulary import (
    Call,
    bit_equal_on_all_ranks,
    check,
    expect,
    expect_loss,
    expect_own_completions,
    expect_shapes,
    jobs_of,
    norm,
)

from . import driver

FUNCTION = "joint_loss_and_gradients"
CLOSE = 1e-10  # relative, in float64: the order of the sums shifts the numbers by about 1e-16
SIZE = sum(parameter.numel() for parameter in driver.Head().parameters()) * 8  # bytes of all gradients
SMALL = 800  # bytes for what is no gradient: counts, weights, numbers of prompts
PROMPTS = {  # by scenario: for each rank the prompts of its pairs
    "a prompt for each pair": [[1, 2, 3], [4, 5, 6]],
    "ranks share no prompt": [[1, 1, 1, 2], [3, 4]],
    "a prompt is on both ranks": [[1, 2, 2, 7, 7, 7, 7, 7], [7, 7, 3]],
    "rank 1 has no pairs": [[5, 5, 9], []],
    "rank 0 has no pairs": [[], [5, 5, 9]],
    "the numbers of the prompts are large": [[0, 10**12], [-3, 10**12, 10**12]],
    "two prompts have numbers that a float cannot tell apart": [[2**53, 2**53 + 1, 4], [2**53 + 1]],
    "prompts are called minus 1 and 0": [[-1, 0, 0, -1, 3], [-1]],
    "prompts have the smallest and the largest number": [[-(2**63), 5], [2**63 - 1, -(2**63), 2**63 - 1, 7]],
    "ragged": [[1, 1, 1, 2], [2], [], [3, 1, 4, 1, 5, 9, 2, 6]],
    "all pairs have the same prompt": [[8], [8, 8, 8], [8], [8, 8]],
    "many pairs on a rank": [[1, 1, 2] * 8, [1], [3] * 7, [2, 3] * 6],
    "one process": [[1, 1, 1, 2]],
}
CALLS = [Call([(prompts,)] * len(prompts), scenario) for scenario, prompts in PROMPTS.items()]
JOBS = jobs_of(FUNCTION, CALLS, driver=True, seconds=4.0, loads=("torch._dynamo",))


@check("your loss is that of one process on the global batch, on 1, 2 and 4 ranks, also where a rank has no pairs")
def the_loss_is_exact(case):
    right, _ = driver.one_process(case.args[0][0])
    for rank, (loss, _, _) in enumerate(case.results):
        expect_loss(rank, loss, right, CLOSE, lambda wrong: (likeness(wrong, case), where_to_look(wrong, right, case)))


@check("and so is its gradient")
def the_gradient_is_exact(case):
    _, right = driver.one_process(case.args[0][0])
    for rank, (_, gradients, _) in enumerate(case.results):
        expect_shapes(rank, gradients, right, "pairs")
        gap = max(map(largest_gap, gradients, right)) / norm(right)
        expect(
            gap < CLOSE,
            f"the gradient on rank {rank} is off by {gap:.1e} of the norm that one process has; its own norm is "
            f"{norm(gradients) / norm(right):.4g} times that",
            "what the gradient is divided by, also where it is reduced over the ranks",
        )


the_ranks_agree_to_the_last_bit = bit_equal_on_all_ranks()


@check("a rank scores its own pairs only, and its gradient travels once")
def a_rank_scores_its_own_pairs(case, rank, result):
    (_, _, rows), pairs = result, len(case.args[0][0][rank])
    expect_own_completions(case, rank, rows, 2 * pairs, SIZE, SMALL + 24 * pairs)


def likeness(loss, case):
    """The end of the message about a wrong loss: its likely cause, or ""."""
    for mistake, other_mean in driver.OTHER_MEANS.items():
        if math.isclose(loss, other_mean(case.args[0][0])[0], rel_tol=1e-9):
            return f"; it is the mean with {mistake}"
    return ""


def where_to_look(loss, right, case):
    """Where to look for the cause of a wrong loss."""
    if math.isnan(loss):
        return "the weights of a rank without pairs add up to 0: is anything divided by that sum?"
    if math.isclose(loss, right, rel_tol=1e-5):
        return "the dtype in which weights and losses are added up"
    if case.world == 1:
        return "the weight of a pair, and what the sum is divided by: with one process no message can be the cause"
    return "which numbers belong to the global batch: what a weight is made of, and what everything is divided by"
