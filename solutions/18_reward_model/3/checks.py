"""18.3: the pairwise loss, weighted by density, with one normaliser over the global batch of all ranks."""

import math

from ddp_course.grader.vocabulary import bit_equal_on_all_ranks, check, driver_job, expect, expect_loss, expect_shapes

from . import driver

FUNCTION = "joint_loss_and_gradients"
CLOSE = 1e-10  # relative, in float64: the order of the sums shifts the numbers by about 1e-16
SIZE = sum(parameter.numel() for parameter in driver.Head().parameters()) * 8  # bytes of all gradients
SMALL = 800  # bytes for what is no gradient: counts, weights, numbers of prompts


def job(world, **by_given):
    calls = {scenario.replace("_", " "): (prompts,) for scenario, prompts in by_given.items()}
    return driver_job(world, FUNCTION, calls, seconds=4.0, loads=("torch._dynamo",))


JOBS = [
    job(
        2,
        a_prompt_for_each_pair=[[1, 2, 3], [4, 5, 6]],
        ranks_share_no_prompt=[[1, 1, 1, 2], [3, 4]],
        a_prompt_is_on_both_ranks=[[1, 2, 2, 7, 7, 7, 7, 7], [7, 7, 3]],
        rank_1_has_no_pairs=[[5, 5, 9], []],
        rank_0_has_no_pairs=[[], [5, 5, 9]],
        the_numbers_of_the_prompts_are_large=[[0, 10**12], [-3, 10**12, 10**12]],
        two_prompts_have_numbers_that_a_float_cannot_tell_apart=[[2**53, 2**53 + 1, 4], [2**53 + 1]],
        prompts_are_called_minus_1_and_0=[[-1, 0, 0, -1, 3], [-1]],
        prompts_have_the_smallest_and_the_largest_number=[[-(2**63), 5], [2**63 - 1, -(2**63), 2**63 - 1, 7]],
    ),
    job(
        4,
        ragged=[[1, 1, 1, 2], [2], [], [3, 1, 4, 1, 5, 9, 2, 6]],
        all_pairs_have_the_same_prompt=[[8], [8, 8, 8], [8], [8, 8]],
        many_pairs_on_a_rank=[[1, 1, 2] * 8, [1], [3] * 7, [2, 3] * 6],
    ),
    job(1, one_process=[[1, 1, 1, 2]]),
]


@check("your loss is that of one process on the global batch, on 1, 2 and 4 ranks, also where a rank has no pairs")
def the_loss_is_exact(case):
    right, _ = driver.one_process(case.args[0][0])
    for rank, (loss, _, _) in enumerate(case.results):
        expect_loss(
            rank, loss, right, CLOSE, lambda wrong: likeness(wrong, case), lambda wrong: advice(wrong, right, case)
        )


@check("and so is its gradient")
def the_gradient_is_exact(case):
    _, right = driver.one_process(case.args[0][0])
    for rank, (_, gradients, _) in enumerate(case.results):
        expect_shapes(rank, gradients, right, "pairs")
        gap = max((a - b).abs().max().item() for a, b in zip(gradients, right, strict=True)) / length(right)
        expect(
            gap < CLOSE,
            f"the gradient on rank {rank} is off by {gap:.1e} of its length; it is "
            f"{length(gradients) / length(right):.4g} times as long as that of one process",
            "what the gradient is divided by, on its way through the ranks as well",
        )


the_ranks_agree_to_the_last_bit = bit_equal_on_all_ranks()


@check("a rank scores its own pairs only, and its gradient travels once")
def a_rank_scores_its_own_pairs(case, rank, result):
    (_, _, rows), pairs = result, len(case.args[0][0][rank])
    sent = sum(operation.bytes for operation in case.operations[rank] if operation.op != "broadcast")
    expect(
        rows <= 2 * pairs,
        f"the head of rank {rank} scored {rows} completions; this rank's {pairs} pairs have {2 * pairs}",
        "whose pairs a rank has to score, and how often",
    )
    expect(
        case.world == 1 or sent <= SIZE + SMALL + 24 * pairs,
        f"rank {rank} handed over {sent:,} bytes; the gradients have {SIZE:,}",
        "how often the gradients travel, and what else does",
    )


def length(gradients):
    return math.sqrt(sum(gradient.square().sum().item() for gradient in gradients))


def likeness(loss, case):
    """A likely cause of a wrong loss, in words that can be put behind it."""
    for what, other in driver.OTHER_MEANS.items():
        if math.isclose(loss, other(case.args[0][0])[0], rel_tol=1e-9):
            return f"; it is the mean with {what}"
    return ""


def advice(loss, right, case):
    if math.isnan(loss):
        return "the weights of a rank without pairs add up to 0: who divides by that?"
    if math.isclose(loss, right, rel_tol=1e-5):
        return "the dtype in which weights and losses are added up"
    if case.world == 1:
        return "the weight of a pair, and what the sum is divided by: one process has no ranks to blame"
    return "which numbers belong to the global batch: what a weight is made of, and what everything is divided by"
