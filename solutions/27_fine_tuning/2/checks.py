"""27.2: the loss of direct preference optimization, where ranks have different numbers of pairs."""

import math

import torch
import torch.nn.functional as F

from ddp_course.grader.vocabulary import (
    Call,
    Mistake,
    Wrong,
    check,
    expect,
    expect_few_operations,
    jobs_of,
    number,
    recognised,
    show,
)

FUNCTION = "dpo_loss"
BETA = 0.5
LONG = "long answers, far from the reference"
PAIRS = {  # the number on each rank; first a step in which no two mistakes give one number
    "three ranks": (3, 1, 4),
    "as many everywhere": (3, 3),
    "rank 1 has more pairs": (1, 5),
    "rank 0 has none": (0, 4),
    LONG: (3, 3),
}


def log_probabilities(name, rank, pairs):
    """(policy, reference): the log probabilities of the chosen answers, then those of the rejected ones."""
    generator = torch.Generator().manual_seed(rank + 7 * pairs)
    policy, reference = -30 * torch.rand(2, 2 * pairs, generator=generator, dtype=torch.float64)
    return (100 * policy, 100 * reference) if name == LONG else (policy, reference)


CALLS = [
    Call([(*log_probabilities(name, rank, pairs), BETA) for rank, pairs in enumerate(share)], name)
    for name, share in PAIRS.items()
]
JOBS = jobs_of(FUNCTION, CALLS, driver=True)


def losses(args, sign=1, with_reference=True):
    """The loss of each pair of a rank; sign=-1 prefers the rejected answer."""
    policy, reference, beta = args
    chosen, rejected = (policy - reference * with_reference).chunk(2)
    return -F.logsigmoid(sign * beta * (chosen - rejected))


@check("every rank returns one finite number")
def a_number_on_every_rank(case, rank, result):
    value, pairs = number(result["loss"]), len(case.args[rank][0]) // 2
    expect(
        isinstance(value, float) and abs(value) < 1e9,
        f"{FUNCTION} returned {show(value)} on rank {rank}, which has {pairs} pairs",
        "log(sigmoid(x)) is -inf where x is far below 0: the logarithm has a function of its own"
        if isinstance(value, float) and math.isinf(value) and pairs
        else "one number, and what it is divided by: a rank may have no pairs of its own",
    )


@check("the average over ranks is the mean over all pairs")
def a_pair_weighs_the_same_everywhere(case, rank, result):
    total = sum(len(args[0]) // 2 for args in case.args)
    rank_losses, value = losses(case.args[rank]), number(result["loss"])
    right = (rank_losses.sum() * case.world / total).item()
    if abs(value - right) > 1e-9 * max(right, 1):
        scale, empty = case.world / total, sum(not len(args[0]) for args in case.args)
        mean_over_rank = rank_losses.mean().item()
        without_reference = losses(case.args[rank], with_reference=False).sum().item() * scale
        of_all = sum(losses(args).sum() for args in case.args).item() / total
        swapped = losses(case.args[rank], sign=-1).sum().item() * scale
        mistakes = [
            Mistake("the mean over this rank's pairs", mean_over_rank, "how many pairs the other ranks have"),
            Mistake("the mean over all ranks' pairs", of_all, "whose losses are asked for: this rank's pairs alone"),
            Mistake("without the reference", without_reference, "relative to which model the answer gains"),
            Mistake("the rejected answer is preferred", swapped, "the order: chosen comes first"),
            Mistake("without the world size", right / case.world, "DDP divides the sum by the number of ranks"),
            Mistake("a rank without pairs counts as 1", right * total / (total + empty), "the count of such a rank: 0"),
            Mistake("the mean over answers", right / 2, "what is counted: a pair has two answers"),
        ]
        formula = "the formula: -log sigmoid(beta * (gain of chosen - of rejected))"
        words, look_at = recognised(value, mistakes, formula, right=right)
        raise Wrong(f"rank {rank} returned {show(value, 10)}{words}, not {show(right, 10)}", look_at)


@check("the gradient flows from it to the policy, also where a rank has no pairs")
def the_gradient_flows(case, rank, result):
    policy, reference, beta = case.args[rank]
    policy = policy.clone().requires_grad_()
    total = sum(len(args[0]) // 2 for args in case.args)
    [right] = torch.autograd.grad(losses((policy, reference, beta)).sum() * case.world / total, policy)
    expect(
        result["gradient"] is not None,
        f"backward of the loss on rank {rank}, which has {len(policy) // 2} pairs, gives policy no gradient",
        "is what you return computed from policy? DDP waits for a gradient from every rank",
    )
    expect(
        torch.allclose(result["gradient"], right, rtol=1e-9),
        f"the gradient of policy on rank {rank} is {show(result['gradient'])}, not {show(right)}",
        "what is detached, or made a number, on the way to the loss",
    )


@check("one number per rank is sent, once")
def one_collective(case):
    return expect_few_operations(case, 1, 64, "what all ranks have to know: one sum")
