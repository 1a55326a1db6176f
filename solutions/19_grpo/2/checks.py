"""19.2: group-normalised advantages and a clipped loss, a mean over the tokens of all ranks."""

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

EQUAL_REWARDS = "rewards equal everywhere"
FUNCTION = "joint_loss_and_gradients"
CLOSE = 1e-10  # relative, in float64: the order of the sums shifts the numbers by about 1e-16
SIZE = sum(parameter.numel() for parameter in driver.Policy().parameters()) * 8  # bytes of all gradients
SMALL = 200  # bytes for what is no gradient
# The completions of a rank: their prompts, rewards and lengths in tokens.
NO_COMPLETIONS = [], [], []
TWO_GROUPS = [1, 1, 1, 1, 2, 2, 2, 2], [0, 1, 1, 3, 2, 0, 0, 1], [10, 3, 7, 1, 2, 9, 4, 10]
MIXED = [4, 3, 4, 3, 3, 4], [0.5, 2, -1, 0, 1, 1], [2, 1, 5, 9, 3, 10]
ONE_REWARD = [5, 5, 5], [0.1, 0.1, 0.1], [4, 10, 6]
SINGLE = [6, 7, 7], [3.0, 1.0, 0.0], [5, 2, 8]
LONG = [8] * 6, [1, 0, 0, 0, 0, 5], [10] * 6
NO_TOKENS = [9, 9, 9], [1, 0, 2], [0, 6, 2]
SCALES = [1, 1, 1, 2, 2, 2, 3, 3, 3], [10, 20, 40, 0.1, 0.2, 0.4, 0, 1e-6, 0], [3, 10, 5, 8, 1, 6, 4, 7, 2]


def call(scenario, *shares):
    """The call on as many ranks as there are shares: the completions of each rank."""
    return Call([(shares, "minus infinity" if "infinity" in scenario else "zeros")] * len(shares), scenario)


CALLS = [
    call("one process", TWO_GROUPS),
    call("groups whose rewards differ in scale", SCALES),
    call("two groups and one", TWO_GROUPS, LONG),
    call("the completions of a group do not lie together", MIXED, TWO_GROUPS),
    call("all rewards of rank 0 are equal", ONE_REWARD, MIXED),
    call("a group of one completion", SINGLE, TWO_GROUPS),
    call("a completion without tokens", NO_TOKENS, TWO_GROUPS),
    call("rank 1 has no completions", TWO_GROUPS, NO_COMPLETIONS),
    call("rank 0 has no completions", NO_COMPLETIONS, LONG),
    call("old is minus infinity behind the end, and nan on rank 1", MIXED, TWO_GROUPS),
    call("uneven shares", MIXED, NO_COMPLETIONS, LONG, SINGLE),
    call(EQUAL_REWARDS, ONE_REWARD, NO_COMPLETIONS, ONE_REWARD, ONE_REWARD),
]
JOBS = jobs_of(FUNCTION, CALLS, driver=True, seconds=4.0, loads=("torch._dynamo",))


@check("your loss is that of one process, on 1, 2 and 4 ranks, also where a rank has no completions")
def the_loss_is_exact(case):
    right, _ = driver.one_process(*case.args[0])
    for rank, (loss, _, _) in enumerate(case.results):
        expect_loss(
            rank, loss, right, CLOSE, lambda wrong: (likeness(wrong, right, case), where_to_look(wrong, right, case))
        )


@check("and so is its gradient")
def the_gradient_is_exact(case):
    _, right = driver.one_process(*case.args[0])
    for rank, (_, gradients, _) in enumerate(case.results):
        expect_shapes(rank, gradients, right, "completions")
        gap = max(map(largest_gap, gradients, right))
        spread = max((wrong - expected).std() for wrong, expected in zip(gradients, right, strict=True))
        expect(
            gap < CLOSE * max(norm(right), 1e-2),
            f"the gradient on rank {rank} has the norm {norm(gradients):.4g} and is off by {gap:.1e}; that of one "
            f"process has the norm {norm(right):.4g}",
            "0 times inf, or inf minus inf: what is behind the end of a completion when the ratio is taken?"
            if math.isnan(norm(gradients))
            else "what .grad held before the call: it is of another loss"
            if spread < 1e-6 * gap  # off by the same everywhere, as .grad was before the call
            else "what the gradient goes through, and what it is divided by where it is reduced over the ranks",
        )


@check("of equal rewards it is exactly 0", scenarios=[EQUAL_REWARDS])
def equal_rewards_move_nothing(case, rank, result):
    largest = max(gradient.abs().max().item() for gradient in result[1])
    expect(
        largest == 0,
        f"the largest gradient on rank {rank} is {largest:.2g}; it should be 0, because Adam divides a gradient "
        "by its own size",
        "rounding: 0.1 minus the mean of three times 0.1. When is an advantage exactly 0?",
    )


the_ranks_agree_to_the_last_bit = bit_equal_on_all_ranks()


@check("a rank scores its own completions only, and its gradient travels once")
def completions_stay_where_they_are(case, rank, result):
    (_, _, rows), (prompts, _, _) = result, case.args[0][0][rank]
    expect_own_completions(case, rank, rows, len(prompts), SIZE, SMALL)


def likeness(loss, right, case):
    """The end of the message about a wrong loss: its likely cause, or ""."""
    for mistake, arguments in driver.MISTAKES.items():
        if math.isclose(loss, driver.one_process(*case.args[0], **arguments)[0], rel_tol=1e-9):
            return f"; it is that with {mistake}"
    return "; it is that with the other sign" if math.isclose(loss, -right, rel_tol=1e-9) else ""


def where_to_look(loss, right, case):
    """Where to look for the cause of a wrong loss."""
    if math.isnan(loss):
        return "where 0 is divided by 0, or 0 multiplied by inf: a spread, a count, or what stands behind the end"
    if math.isclose(loss, right, rel_tol=1e-4):
        return "the dtype of the sums, and the 1e-4 that is added to the spread"
    if "together" in case.scenario:
        return "which completions belong to a group: `prompts` says so, not their position"
    if "without tokens" in case.scenario:
        return "the mean and the deviation of its group: a completion without tokens has a reward, too"
    if case.world == 1:
        return "the advantage of a completion and the clipped term of a token: here no message can be the cause"
    return "which number belongs to the global batch, and what a rank without completions contributes"
