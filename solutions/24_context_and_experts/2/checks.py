"""24.2: a step of context parallel training that differs from one process for three reasons, and raises nothing."""

import math

import torch
import torch.nn.functional as F

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import Mistake, number, recognised

from .driver import LENGTH, LENGTHS, PAD, windows_of

FUNCTION = "backward"
LOSS, CLOSE, UNEVEN = 1e-9, 1e-7, 1.2


def job(world):
    return Job(world, FUNCTION, tuple(Call([(name,)] * world, name) for name in LENGTHS), driver=True)


JOBS = [job(2), job(1)]


def each_token_is_computed_once(records):
    """Over all ranks each token of each window is computed once, at its own position."""
    for case in cases(records):
        windows, covered = windows_of(case.given), []
        for rank, result in enumerate(case.results):
            if len(result["calls"]) != 1:
                times = len(result["calls"])
                look = "one call, with all tokens of the rank"
                raise Wrong(f"{case.where}rank {rank} called model {times} times", look)
            [[tokens, positions]] = result["calls"]
            covered += positions
            if tokens != windows[:, positions].tolist():
                raise Wrong(
                    f"{case.where}rank {rank} gives its tokens the positions {positions}, but they stand elsewhere",
                    "the positions of the two chunks: the second one does not follow the first",
                )
        if sorted(covered) != list(range(LENGTH)):
            by_rank = ", ".join(f"rank {rank} {one['calls'][0][1]}" for rank, one in enumerate(case.results))
            raise Wrong(
                f"{case.where}the ranks compute the positions {by_rank}; all of them have to be there once",
                "which chunks a rank takes",
            )
    return "each token is computed once, at its own position"


def all_ranks_have_equal_work(records):
    """No rank has more than 1.2 times the (query, key) pairs of another under the causal mask."""
    for case in cases(records):
        pairs = [sum(position + 1 for position in one["calls"][0][1]) for one in case.results]
        if max(pairs) > UNEVEN * min(pairs):
            raise Wrong(
                f"{case.where}the ranks have {pairs} pairs of query and key",
                "late tokens see more keys than early ones: each rank needs some of both",
            )
    return "all ranks have about as many pairs of query and key"


def the_loss_is_that_of_one_process(records):
    """Every rank returns the mean over all targets of all windows."""
    for case in cases(records):
        sums = target_losses(case)
        right = sums.sum().item() / targets_of(case).ne(PAD).sum().item()
        for rank, result in enumerate(case.results):
            loss = number(result["loss"])
            if not isinstance(loss, int | float):
                raise Wrong(f"{case.where}rank {rank} returned {str(loss)[:60]!r}", "the loss, a number")
            if not math.isclose(loss, right, rel_tol=LOSS):
                otherwise = "the sum over all targets of all ranks, over their number"
                words, look = recognised(loss, likely(case, rank), otherwise)
                if math.isnan(loss):
                    look = "a rank without a target: its mean is 0 / 0"
                found = f"the loss on rank {rank} is {loss:.6f}{words}; one process has {right:.6f}"
                raise Wrong(f"{case.where}{found}", look)
    return "the loss is that of one process, also where a rank has no target"


def the_gradients_are_those_of_one_process(records):
    """On every rank each parameter has the gradient of one process."""
    for case in cases(records):
        for rank, result in enumerate(case.results):
            for name, right in result["right"].items():
                mine = result["mine"].get(name)
                if not torch.is_tensor(mine):
                    raise Wrong(f"{case.where}{name} has no gradient on rank {rank}", "what is left in parameter.grad")
                gap = (mine - right).abs().max().item()
                if not gap < CLOSE:
                    parts = f"one part in {case.world} of it"
                    words, look = recognised(
                        mine,
                        [Mistake(parts, right / case.world, "the sum of the ranks' parts, or their mean?")],
                        "what backward starts from on each rank, and what then becomes of the ranks' gradients",
                    )
                    raise Wrong(
                        f"{case.where}the gradient of {name} on rank {rank} is {gap:.1e} away from one process{words}",
                        look,
                    )
    return "the gradients are those of one process"


def the_ranks_agree_to_the_last_bit(records):
    """Gradients are bit-equal on all ranks: replicas that part by a rounding part for good."""
    for case in cases(records):
        for rank, result in enumerate(case.results):
            for name, mine in result["mine"].items():
                if not torch.equal(mine, case.results[0]["mine"][name]):
                    raise Wrong(
                        f"{case.where}the gradient of {name} on rank {rank} differs from rank 0's by a rounding",
                        "every rank has to add up the same numbers: is its own part the one that it has sent?",
                    )
    return "bit-equal on all ranks"


CHECKS = [
    each_token_is_computed_once,
    all_ranks_have_equal_work,
    the_loss_is_that_of_one_process,
    the_gradients_are_those_of_one_process,
    the_ranks_agree_to_the_last_bit,
]


def targets_of(case):
    return F.pad(windows_of(case.given)[:, 1:], (0, 1), value=PAD)


def target_losses(case, targets=None, places=slice(None)):
    """(windows, tokens): the loss of each target by the weights of one process, 0 where there is none."""
    logits, targets = case.results[0]["logits"][:, places], targets_of(case) if targets is None else targets
    return F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=PAD, reduction="none")


def likely(case, rank):
    """What a wrong loss on this rank may be."""
    places = [torch.tensor(one["calls"][0][1]) for one in case.results]
    sums = [target_losses(case)[:, own].sum() for own in places]
    counts = [targets_of(case)[:, own].ne(PAD).sum() for own in places]
    cut_first = [F.pad(windows_of(case.given)[:, own][:, 1:], (0, 1), value=PAD) for own in places]
    late = [target_losses(case, *pair).sum() for pair in zip(cut_first, places, strict=True)]
    late_counts = [targets.ne(PAD).sum() for targets in cut_first]
    means = "weigh by the targets that a rank has, or add up before you divide"
    shifted = "a token's target is the next one of the window, which another rank may have: shift first, then cut"
    means_of = [
        Mistake("the mean of the ranks' means", mean_of_means(sums, counts), means),
        Mistake("the mean over this rank's targets", float(sums[rank] / counts[rank]), means),
    ]
    rolled = windows_of(case.given).roll(-1, 1)
    around = float(target_losses(case, rolled).sum() / rolled.ne(PAD).sum())
    of_tokens = float(sum(sums) / targets_of(case).numel())
    return [
        Mistake("with targets shifted after the cut", float(sum(late) / sum(late_counts)), shifted),
        Mistake("with targets shifted after the cut, some lost", float(sum(late) / sum(counts)), shifted),
        Mistake("with targets shifted after the cut, as a mean of means", mean_of_means(late, late_counts), shifted),
        *(means_of if case.world > 1 else []),
        Mistake("with the first token as the target of the last", around, "the last token of a window has none"),
        Mistake("this rank's part of it", float(sums[rank] / sum(counts)), "the loss returned: it is not added up"),
        Mistake("the sum over the number of all tokens", of_tokens, "PAD is no target: count the others"),
    ]


def mean_of_means(sums, counts):
    return float(sum(one / count for one, count in zip(sums, counts, strict=True)) / len(sums))
