"""28.2: SupCon over all ranks: labels gathered, one divisor, and ranks without a single positive."""

import math

import torch

from ddp_course.grader.vocabulary import Call, Job, Mistake, check, expect, recognised

from .driver import features
from .given import TEMPERATURE

FUNCTION = "supervised_contrastive_loss"
CLOSE = 1e-9  # float64
# Labels may be hashes. The first and the last are equal in float64, the first two in int32.
CODES = 2**60 + torch.tensor([0, 2**32, 1])


def calls(world):
    """The calls of the learner's function: each scenario with the labels of all ranks."""
    generator = torch.Generator().manual_seed(world)
    random = torch.randint(3, (world, 6), generator=generator)
    all_different = torch.arange(6 * world).view(world, 6)
    last_rank_different = random.clone()
    last_rank_different[-1] = 10 + torch.arange(6)  # no row of the last rank has a positive on any rank
    batches = {
        "three classes": random,
        "the classes differ between the ranks": random + 2 * torch.arange(world)[:, None],
        f"rank {world - 1} has no positive": last_rank_different,
        "no row has a positive": all_different,
        "labels just above 2**60": CODES[random],
    }
    return tuple(Call([(row.clone(),) for row in labels], scenario) for scenario, labels in batches.items())


JOBS = [Job(world, FUNCTION, calls(world), driver=True) for world in (2, 3, 1)]
EXACT = ["labels just above 2**60"]
USUAL = sorted({call.scenario for job in JOBS for call in job.calls} - set(EXACT))


def per_row(rows, labels):
    """The loss of each row, and whether it has a positive."""
    itself = torch.eye(len(rows), dtype=torch.bool)
    positive = (labels[:, None] == labels) & ~itself
    log_p = (rows @ rows.T / TEMPERATURE).masked_fill(itself, -torch.inf).log_softmax(dim=1)
    return -log_p.masked_fill(~positive, 0).sum(1) / positive.sum(1).clamp(min=1), positive.any(1)


def mean_loss(losses, has_positive):
    """The mean over the rows that have a positive; 0 if none has."""
    return losses.sum() / has_positive.sum().clamp(min=1)


def one_process(case):
    """The loss over the global batch, and its gradient."""
    labels = torch.cat([labels for (labels,) in case.args])
    rows = features(len(case.args[0][0]), case.world).requires_grad_()
    loss = mean_loss(*per_row(rows, labels))
    return loss.item(), torch.autograd.grad(loss, rows)[0]


def expect_the_loss(case, look_at):
    """Raise Wrong unless the mean of the ranks' losses is that of one process."""
    loss, right = sum(result["loss"] for result in case.results) / case.world, one_process(case)[0]
    rows, labels = features(len(case.args[0][0]), case.world), [labels for (labels,) in case.args]
    own_columns = [mean_loss(*per_row(*part)).item() for part in zip(rows.chunk(case.world), labels, strict=True)]
    losses, has_positive = (part.chunk(case.world) for part in per_row(rows, torch.cat(labels)))
    means = [mean_loss(*part).item() for part in zip(losses, has_positive, strict=True)]
    mistakes = (
        Mistake(
            "that of rows compared with their own rank's only",
            sum(own_columns) / case.world,
            "the columns: a row is compared with the rows of all ranks",
        ),
        Mistake("the mean of the ranks' means", sum(means) / case.world, "what the sum of a rank is divided by"),
    )
    words, look_at = recognised(loss, mistakes, look_at, right=right)
    expect(
        math.isclose(loss, right, rel_tol=CLOSE, abs_tol=CLOSE),
        f"the mean of the ranks' losses is {loss:.6f}; one process has {right:.6f}{words}",
        look_at,
    )


@check("each rank has a finite loss, also where no row has a positive")
def the_loss_is_finite(case, rank, result):
    expect(
        result["gradient"] is not None,
        f"backward of the loss on rank {rank} gives features no gradient",
        "is what you return computed from features, also where no row has a positive? DDP waits for every rank",
    )
    finite = math.isfinite(result["loss"]) and bool(result["gradient"].isfinite().all())
    expect(
        finite,
        f"rank {rank} has the loss {result['loss']} and a largest gradient of {result['gradient'].abs().max():.3g}",
        "the divisions: a row may have no positive, and a batch no such row",
    )


@check("the mean of the ranks' losses is the loss of one process, on 1, 2 and 3 ranks", scenarios=USUAL)
def the_loss_is_right(case):
    expect_the_loss(case, "which rows count, which columns they have, and what the sum is divided by")


@check("DDP's mean of the gradients is that of one process", scenarios=USUAL)
def the_gradients_are_right(case, rank, result):
    right = one_process(case)[1].chunk(case.world)[rank]
    times = ((result["gradient"] * right).sum() / right.square().sum().clamp(min=1e-30)).item()
    expect(
        torch.allclose(result["gradient"], right, rtol=CLOSE, atol=CLOSE),
        f"the gradient for the features of rank {rank}, divided by N, holds {times:.3f} times that of one process",
        "what happens to the gradient for another rank's rows, and which factor DDP's mean leaves",
    )


@check("labels are compared as whole numbers", scenarios=EXACT)
def labels_are_exact(case):
    expect_the_loss(case, "the dtype: float64 makes 2**60 and 2**60 + 1 equal, int32 2**60 and 2**60 + 2**32")
