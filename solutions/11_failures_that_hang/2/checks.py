"""11.2: each rank decides by its own loss whether to save, and saving is a collective: all ranks have to agree."""

import math

import torch

from ddp_course.grader.vocabulary import Call, check, expect, jobs_of

from . import given as given_script

COLLECT = "collect(epoch) stays as it is, and every rank calls it"


def call(scenario, *losses):
    """The call of train in which each rank gets its list of `losses`."""
    return Call([(rank_losses,) for rank_losses in losses], scenario)


CALLS = [
    call("the numbers of the script", *given_script.LOSSES),
    call("only rank 1 gets better", [2.0, 2.0, 2.0], [3.0, 2.5, 2.25]),
    call("one gets better as the other gets worse", [2.0, 1.0, 2.0], [2.0, 3.5, 2.0]),
    call("the mean stays", [2.0, 1.0, 3.0], [2.0, 3.0, 1.0]),
    call("rank 1 has a nan", [2.0, 1.0, 0.5], [2.0, math.nan, 0.5]),
    call("the first loss is a nan", [math.nan, 2.0], [2.0, 2.0]),
    call("the mean is 0, then higher, then lower", [1.0, 0.0, 0.5, -1.0], [1.0, 0.0, 0.5, -1.0]),
    call("no epoch", [], []),
    call("one rank of three has the best first loss", [1.0, 1.25, 0.5], [3.0, 2.25, 2.0], [3.0, 2.0, 3.0]),
    call("the lowest loss of a rank does not count", [4.0, 0.25, 4.0], [4.0, 8.0, 4.0], [4.0, 8.0, 3.0]),
    call(
        "one rank, and at last two small gains, of which float32 holds one",
        [2.0, 3.0, 1.0, 1.0 - 2**-20, 1.0 - 2**-20 - 2**-50],
    ),
]
JOBS = jobs_of("train", CALLS)


@check("all ranks save after the same epochs")
def all_ranks_save_together(case):
    epochs = [sorted(checkpoints(result)) for result in case.results]
    saves = ", ".join(f"rank {rank} after {rank_epochs}" for rank, rank_epochs in enumerate(epochs))
    gathers = [all_gathers(operations) for operations in case.operations]
    look_at = "what each rank compares: is it the same number on all ranks?"
    if len(set(gathers)) == 1 and gathers[0]:  # all took part in the same calls of collect
        look_at = "what each rank keeps and returns: {epoch: parts}, on every rank"
    expect(
        all(rank_epochs == epochs[0] for rank_epochs in epochs),
        f"the ranks do not save after the same epochs: {saves}",
        look_at,
    )


@check("what is saved is best by the mean over the ranks, on 1, 2 and 3 ranks")
def the_best_mean_counts(case):
    losses = [args[0] for args in case.args]
    right, saved = best_epochs(means(losses)), sorted(checkpoints(case.results[0]))
    mistake, look_at = likeness(losses, saved)
    expect(
        saved == right, f"saved after epochs {saved}{mistake}; the mean loss was the best so far after {right}", look_at
    )


@check("each checkpoint has the parts of all ranks")
def each_part_is_there(case, rank, result):
    saved = checkpoints(result)
    for epoch, parts in saved.items():
        right = [f"rank {number} after epoch {epoch}" for number in range(case.world)]
        expect(
            parts == right, f"on rank {rank} the checkpoint of epoch {epoch} holds {parts!r}, not {right!r}", COLLECT
        )
    gathered = all_gathers(case.operations[rank])
    expect(
        gathered >= len(saved),
        f"rank {rank} has {len(saved)} checkpoints with the parts of all ranks, and took part in {gathered} "
        "all-gathers: where do the parts of the other ranks come from?",
        COLLECT,
    )


def all_gathers(operations):
    """How many all-gathers are among the operations of a rank."""
    return sum(operation.op == "all_gather" for operation in operations)


def checkpoints(result):
    """{epoch: parts} of a rank that returned a dict."""
    return {int(epoch): parts for epoch, parts in result.items()} if isinstance(result, dict) else {}


def means(losses):
    """The mean over the ranks, for each epoch."""
    return [sum(epoch_losses) / len(epoch_losses) for epoch_losses in zip(*losses, strict=True)]


def best_epochs(values):
    """The epochs whose value is lower than all before."""
    best, epochs = math.inf, []
    for epoch, value in enumerate(values):
        if value < best:
            best = value
            epochs.append(epoch)
    return epochs


def likeness(losses, saved):
    """The end of the message, what gives the epochs in `saved` if it is a known mistake; and where to look."""
    if nan := [epoch for epoch, mean in enumerate(means(losses)) if math.isnan(mean)]:
        look_at = "what a nan on one rank makes of the mean, and what comparisons with it say, in this epoch and later"
        return f", where the mean of epoch {nan[0]} is nan", look_at
    if saved == best_epochs([torch.tensor(mean).item() for mean in means(losses)]):
        return ", as the means say in float32", "the dtype of what is reduced and compared: float64"
    which_loss = "the number that is compared: it has to be the mean over the ranks"
    if saved == best_epochs([min(epoch_losses) for epoch_losses in zip(*losses, strict=True)]):
        return ", as the lowest loss of any rank says", which_loss
    for rank, rank_losses in enumerate(losses):
        if saved == best_epochs(rank_losses):
            return f", as the losses of rank {rank} alone say", which_loss
    return "", "the comparison: the mean over the ranks, with the best mean before it"
