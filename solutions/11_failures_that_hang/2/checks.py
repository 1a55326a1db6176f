"""11.2: every rank decides by its own loss whether to save, and saving is for all: the decision made one."""

import math

import torch

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

from . import given as given_script

NAN = math.nan
COLLECT = "collect(epoch) stays as it is, and every rank calls it"


def call(given, *losses):
    return Call([(list(one),) for one in losses], given)


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


def all_ranks_save_together(records):
    """All ranks save after the same epochs."""
    for case in cases(records):
        epochs = [sorted(saved) if isinstance(saved, dict) else saved for saved in map(plain, case.results)]
        if any(one != epochs[0] for one in epochs):
            who = ", ".join(f"rank {rank} after {one}" for rank, one in enumerate(epochs))
            raise Wrong(f"{case.where}the ranks do not save together: {who}", "what the decision is made of")
    return "all ranks save after the same epochs"


def the_best_mean_counts(records):
    """An epoch is saved if the mean loss over the ranks is lower than every mean before; a nan is never."""
    for case in cases(records):
        losses = [args[0] for args in case.args]
        right, found = best_epochs(means(losses)), sorted(plain(case.results[0]))
        if found != right:
            nan = any(math.isnan(mean) for mean in means(losses))
            raise Wrong(
                f"{case.where}saved after epochs {found}{likeness(losses, found)}; the mean loss was the best so far "
                f"after {right}",
                "what a nan on one rank makes of the mean, and what comparisons with it say, in this epoch and later"
                if nan
                else "what is compared with what? The mean over the ranks, with the best mean before it",
            )
    return "what is saved is best by the mean over the ranks, on 1, 2 and 3 ranks"


def each_part_is_there(records):
    """Every checkpoint has the part of every rank, from that epoch."""
    for case in cases(records):
        for rank, saved in enumerate(map(plain, case.results)):
            for epoch, parts in saved.items():
                right = [f"rank {one} after epoch {epoch}" for one in range(case.world)]
                if parts != right:
                    raise Wrong(
                        f"{case.where}on rank {rank} the checkpoint of epoch {epoch} holds {parts!r}, not {right!r}",
                        COLLECT,
                    )
            gathered = sum(one.op == "all_gather" for one in case.operations[rank])
            if gathered < len(saved):
                raise Wrong(
                    f"{case.where}rank {rank} has {len(saved)} checkpoints with the parts of all ranks, and took part "
                    f"in {gathered} all-gathers: what was handed over?",
                    COLLECT,
                )
    return "each checkpoint has the parts of all ranks"


CHECKS = [all_ranks_save_together, the_best_mean_counts, each_part_is_there]


def plain(saved):
    """JSON, in which the ranks answer, has text for keys."""
    return {int(epoch): parts for epoch, parts in saved.items()} if isinstance(saved, dict) else {}


def means(losses):
    return [sum(of_epoch) / len(of_epoch) for of_epoch in zip(*losses, strict=True)]


def best_epochs(values):
    best, found = math.inf, []
    for epoch, value in enumerate(values):
        if value < best:
            best = value
            found.append(epoch)
    return found


def likeness(losses, found):
    if nan := [epoch for epoch, mean in enumerate(means(losses)) if math.isnan(mean)]:
        return f", where the mean of epoch {nan[0]} is nan"
    if found == best_epochs([torch.tensor(mean).item() for mean in means(losses)]):
        return ", as the means say in float32"
    if found == best_epochs([min(of_epoch) for of_epoch in zip(*losses, strict=True)]):
        return ", as the lowest loss of any rank says"
    for rank, own in enumerate(losses):
        if found == best_epochs(own):
            return f", as the losses of rank {rank} alone say"
    return ""
