"""28.1: a contrastive loss over all ranks whose gradient, averaged by DDP, is that of one process."""

import math
from statistics import fmean

import torch
from torch.nn.functional import cross_entropy

from ddp_course.grader.vocabulary import Mistake, check, driver_job, expect, recognised

from . import given
from .driver import inputs

FUNCTION = "contrastive_loss"
ROWS, SEEDS, CLOSE = 6, (1, 2), 1e-9  # float64
JOBS = [
    driver_job(world, FUNCTION, {f"batch {seed}": (seed, ROWS) for seed in SEEDS}, loads=("torch._dynamo",))
    for world in (2, 3, 1)
]
LARGE = [job for job in JOBS if job.world == 3]


def one_process(case):
    """The loss over the global batch, and its gradients."""
    images, texts, scale = (part.requires_grad_() for part in inputs(*case.args[0], case.world))
    loss = given.one_process(images, texts, scale)
    gradients = torch.autograd.grad(loss, (images, texts, scale))
    return loss.item(), dict(zip(("images", "texts", "scale"), gradients, strict=True))


@check("the mean of the ranks' losses is the loss of one process, on 1, 2 and 3 ranks")
def the_loss_is_right(case):
    loss, right = sum(result["loss"] for result in case.results) / case.world, one_process(case)[0]
    images, texts, scale = inputs(*case.args[0], case.world)
    shares = zip(images.chunk(case.world), texts.chunk(case.world), strict=True)
    own_columns = fmean(given.one_process(*share, scale).item() for share in shares)
    logits = scale * images @ texts.T
    same_labels = torch.arange(ROWS).repeat(case.world)  # as if every rank were rank 0
    from_0 = (cross_entropy(logits, same_labels) + cross_entropy(logits.T, same_labels)) / 2
    mistakes = (
        Mistake("that of rows compared with their own rank's only", own_columns, "the columns"),
        Mistake("with the same right columns on every rank", from_0.item(), "in which column a row of rank 1 is right"),
        Mistake("N times as much", right * case.world, "whether DDP leaves a factor N for you to correct"),
    )
    words, look_at = recognised(loss, mistakes, "the columns, and which of them is right for a row", right=right)
    expect(
        math.isclose(loss, right, rel_tol=CLOSE),
        f"the mean of the ranks' losses is {loss:.6f}; one process has {right:.6f}{words}",
        look_at,
    )


@check("DDP's mean of the embeddings' gradients is that of one process")
def the_gradients_are_right(case, rank, result):
    for name in ("images", "texts"):
        right = one_process(case)[1][name].chunk(case.world)[rank]
        nth = Mistake("1/N of it", right / case.world, "how often a row's gradient is added up before DDP divides")
        words, look_at = recognised(result[name], [nth], "what happens to the gradient for another rank's rows")
        times = ((result[name] * right).sum() / right.square().sum()).item()
        expect(
            torch.allclose(result[name], right, rtol=CLOSE, atol=CLOSE),
            f"the gradient for the {name} of rank {rank}, divided by N, holds {times:.3f} times one process's{words}",
            look_at,
        )


@check("and so is the temperature's")
def the_temperature_is_right(case):
    scale, right = sum(result["scale"] for result in case.results) / case.world, one_process(case)[1]["scale"].item()
    expect(
        math.isclose(scale, right, rel_tol=CLOSE),
        f"the mean of the gradients of scale is {scale / right:.3f} times that of one process",
        "scale is used on every rank: its mean over the ranks needs no factor",
    )


@check("no rank builds the matrix of all rows and all columns", LARGE)
def the_matrix_stays_small(case, rank, result):
    rows, columns = ROWS, ROWS * case.world
    expect(
        result["largest"] <= 2 * rows * columns,
        f"rank {rank} built a tensor of {result['largest']} numbers; its rows and all columns make {rows * columns}, "
        f"and twice as many are allowed",
        "which rows a rank needs: those whose loss it returns",
    )
