"""24.2: a step of context parallel training that differs from one process for three reasons, and raises nothing."""

import math

import torch
import torch.nn.functional as F

from ddp_course.grader.harness.tensors import largest_gap
from ddp_course.grader.vocabulary import Mistake, Wrong, check, driver_job, expect, number, recognised

from .driver import LENGTH, LENGTHS, PAD, windows_of

FUNCTION = "backward"
LOSS_CLOSE, GRADIENT_CLOSE = 1e-9, 1e-7
MAX_IMBALANCE = 1.2  # the pairs of the rank that has most, over those of the rank that has fewest

JOBS = [driver_job(world, FUNCTION, list(LENGTHS)) for world in (2, 1)]


@check("each token is computed once, at its own position")
def each_token_is_computed_once(case):
    windows = windows_of(case.scenario)
    for rank, result in enumerate(case.results):
        calls = result["calls"]
        expect(len(calls) == 1, f"rank {rank} called model {len(calls)} times", "one call, with all tokens of the rank")
        [[tokens, positions]] = calls
        expect(
            tokens == windows[:, positions].tolist(),
            f"rank {rank} gives its tokens the positions {positions}, but they stand elsewhere",
            "the positions of the two chunks: the second one does not follow the first",
        )
    by_rank = positions_by_rank(case)
    words = ", ".join(f"rank {rank} {positions}" for rank, positions in enumerate(by_rank))
    expect(
        sorted(sum(by_rank, [])) == list(range(LENGTH)),
        f"the ranks compute the positions {words}; all of them have to be there once",
        "which chunks each rank takes",
    )


@check("all ranks have about as many pairs of query and key")
def all_ranks_have_equal_work(case):
    pairs = [sum(position + 1 for position in positions) for positions in positions_by_rank(case)]
    expect(
        max(pairs) <= MAX_IMBALANCE * min(pairs),
        f"the ranks have {pairs} pairs of query and key",
        "late tokens see more keys than early ones: each rank needs some of both",
    )


@check("the loss is that of one process, also where a rank has no target")
def the_loss_is_that_of_one_process(case, rank, result):
    right = target_losses(case).sum().item() / targets_of(case).ne(PAD).sum().item()
    loss = number(result["loss"])
    expect(isinstance(loss, int | float), f"rank {rank} returned {str(loss)[:60]!r}", "the loss, a number")
    if not math.isclose(loss, right, rel_tol=LOSS_CLOSE):
        words, look_at = recognised(
            loss, likely_mistakes(case, rank), "the sum over all targets of all ranks, over their number", right=right
        )
        if math.isnan(loss):
            look_at = "a rank without a target: its mean is 0 / 0"
        raise Wrong(f"the loss on rank {rank} is {loss:.6f}{words}; one process has {right:.6f}", look_at)


@check("the gradients are those of one process")
def the_gradients_are_those_of_one_process(case, rank, result):
    for name, right in result["right"].items():
        gradient = result["gradients"].get(name)
        expect(torch.is_tensor(gradient), f"{name} has no gradient on rank {rank}", "what is left in parameter.grad")
        gap = largest_gap(gradient, right)
        if not gap < GRADIENT_CLOSE:
            nth = Mistake(
                f"one part in {case.world} of it", right / case.world, "the sum of the ranks' parts, or their mean?"
            )
            otherwise = "what backward starts from on each rank, and what then happens to the ranks' gradients"
            words, look_at = recognised(gradient, [nth], otherwise)
            raise Wrong(f"the gradient of {name} on rank {rank} is {gap:.1e} away from one process{words}", look_at)


@check("bit-equal on all ranks")
def the_ranks_agree_to_the_last_bit(case, rank, result):
    for name, gradient in result["gradients"].items():
        expect(
            torch.equal(gradient, case.results[0]["gradients"][name]),
            f"the gradient of {name} on rank {rank} differs from rank 0's by a rounding",
            "every rank has to add up the same numbers: is its own part the one that it has sent?",
        )


def positions_by_rank(case):
    """For each rank the positions with which it called the model."""
    return [result["calls"][0][1] for result in case.results]


def targets_of(case):
    return F.pad(windows_of(case.scenario)[:, 1:], (0, 1), value=PAD)


def target_losses(case, targets=None, positions=slice(None)):
    """The loss of each target with the logits of one process, 0 where there is none, of shape (windows, tokens)."""
    logits, targets = case.results[0]["logits"][:, positions], targets_of(case) if targets is None else targets
    return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=PAD, reduction="none")


def likely_mistakes(case, rank):
    """Mistakes that explain a wrong loss on this rank."""
    by_rank = list(map(torch.tensor, positions_by_rank(case)))
    sums = [target_losses(case)[:, positions].sum() for positions in by_rank]
    counts = [targets_of(case)[:, positions].ne(PAD).sum() for positions in by_rank]
    late_targets = [F.pad(windows_of(case.scenario)[:, positions][:, 1:], (0, 1), value=PAD) for positions in by_rank]
    late_sums = [target_losses(case, *pair).sum() for pair in zip(late_targets, by_rank, strict=True)]
    late_counts = [targets.ne(PAD).sum() for targets in late_targets]
    within = torch.arange(1, LENGTH + 1) % (LENGTH // (2 * case.world)) != 0  # not the last token of a chunk
    within_chunks = float(target_losses(case)[:, within].sum() / targets_of(case)[:, within].ne(PAD).sum())
    rolled = windows_of(case.scenario).roll(-1, 1)
    rolled_mean = float(target_losses(case, rolled).sum() / rolled.ne(PAD).sum())
    mean_over_tokens = float(sum(sums) / targets_of(case).numel())
    weigh = "weigh by the targets that a rank has, or add up before you divide"
    shift_first = "a token's target is the next one of the window, which another rank may have: shift first, then cut"
    late = "with targets shifted after the cut"
    means = [
        Mistake("the mean of the ranks' means", mean_of_means(sums, counts), weigh),
        Mistake("the mean over this rank's targets", float(sums[rank] / counts[rank]), weigh),
    ]
    return [
        Mistake(late, float(sum(late_sums) / sum(late_counts)), shift_first),
        Mistake(f"{late}, some lost", float(sum(late_sums) / sum(counts)), shift_first),
        Mistake(f"{late}, as a mean of means", mean_of_means(late_sums, late_counts), shift_first),
        Mistake("without a target for the last token of a chunk", within_chunks, shift_first),
        *(means if case.world > 1 else []),
        Mistake("with the first token as the target of the last", rolled_mean, "the last token of a window has none"),
        Mistake("this rank's part of it", float(sums[rank] / sum(counts)), "the loss returned: it is not added up"),
        Mistake("the sum over the number of all tokens", mean_over_tokens, "PAD is no target: count the others"),
    ]


def mean_of_means(sums, counts):
    return float(sum(total / count for total, count in zip(sums, counts, strict=True)) / len(sums))
