"""11.2: every rank decides by its own loss whether to save, and saving is for all: the decision made one."""

import math

import torch

from ddp_course.grader.vocabulary import Call, Job, check, expect

from . import given as given_script

NAN = math.nan
COLLECT = "collect(epoch) stays as it is, and every rank calls it"


def call(scenario, *losses):
    return Call([(list(own),) for own in losses], scenario)


JOBS = [
    Job(
        2,
        "train",
        (
            call("the numbers of the script", *given_script.LOSSES),
            call("only rank 1 gets better", [2.0, 2.0, 2.0], [3.0, 2.5, 2.25]),
            call("one gets better as the other gets worse", [2.0, 1.0, 2.0], [2.0, 3.5, 2.0]),
            call("the mean stays", [2.0, 1.0, 3.0], [2.0, 3.0, 1.0]),
            call("rank 1 has a nan", [2.0, 1.0, 0.5], [2.0, NAN, 0.5]),
            call("the first loss is a nan", [NAN, 2.0], [2.0, 2.0]),
            call("no epoch", [], []),
        ),
    ),
    Job(
        3,
        "train",
        (
            call("one of three is best at first", [1.0, 1.25, 0.5], [3.0, 2.25, 2.0], [3.0, 2.0, 3.0]),
            call("the lowest loss of a rank does not count", [4.0, 0.25, 4.0], [4.0, 8.0, 4.0], [4.0, 8.0, 3.0]),
        ),
    ),
    Job(
        1,
        "train",
        (
            call(
                "one rank, and at last two small gains, of which float32 holds one",
                [2.0, 3.0, 1.0, 1.0 - 2**-20, 1.0 - 2**-20 - 1e-9],
            ),
        ),
    ),
]


@check("all ranks save after the same epochs")
def all_ranks_save_together(case):
    epochs = [sorted(checkpoints(result)) for result in case.results]
    who = ", ".join(f"rank {rank} after {own}" for rank, own in enumerate(epochs))
    expect(
        all(own == epochs[0] for own in epochs),
        f"the ranks do not save together: {who}",
        "what the decision is made of",
    )


@check("what is saved is best by the mean over the ranks, on 1, 2 and 3 ranks")
def the_best_mean_counts(case):
    losses = [args[0] for args in case.args]
    right, saved = best_epochs(means(losses)), sorted(checkpoints(case.results[0]))
    expect(
        saved == right,
        f"saved after epochs {saved}{likeness(losses, saved)}; the mean loss was the best so far after {right}",
        "what a nan on one rank makes of the mean, and what comparisons with it say, in this epoch and later"
        if any(map(math.isnan, means(losses)))
        else "what is compared with what? The mean over the ranks, with the best mean before it",
    )


@check("each checkpoint has the parts of all ranks")
def each_part_is_there(case, rank, result):
    saved = checkpoints(result)
    for epoch, parts in saved.items():
        right = [f"rank {number} after epoch {epoch}" for number in range(case.world)]
        expect(
            parts == right, f"on rank {rank} the checkpoint of epoch {epoch} holds {parts!r}, not {right!r}", COLLECT
        )
    gathered = sum(operation.op == "all_gather" for operation in case.operations[rank])
    expect(
        gathered >= len(saved),
        f"rank {rank} has {len(saved)} checkpoints with the parts of all ranks, and took part in {gathered} "
        "all-gathers: what was handed over?",
        COLLECT,
    )


def checkpoints(result):
    """{epoch: parts} of a rank that returned a dict."""
    return {int(epoch): parts for epoch, parts in result.items()} if isinstance(result, dict) else {}


def means(losses):
    return [sum(of_epoch) / len(of_epoch) for of_epoch in zip(*losses, strict=True)]


def best_epochs(values):
    best, epochs = math.inf, []
    for epoch, value in enumerate(values):
        if value < best:
            best = value
            epochs.append(epoch)
    return epochs


def likeness(losses, saved):
    if nan := [epoch for epoch, mean in enumerate(means(losses)) if math.isnan(mean)]:
        return f", where the mean of epoch {nan[0]} is nan"
    if saved == best_epochs([torch.tensor(mean).item() for mean in means(losses)]):
        return ", as the means say in float32"
    if saved == best_epochs([min(of_epoch) for of_epoch in zip(*losses, strict=True)]):
        return ", as the lowest loss of any rank says"
    for rank, own in enumerate(losses):
        if saved == best_epochs(own):
            return f", as the losses of rank {rank} alone say"
    return ""
