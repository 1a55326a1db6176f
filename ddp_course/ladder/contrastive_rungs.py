"""Rungs about losses over all ranks: CLIP's, in which each row is compared with the rows of every rank."""

import math
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from ddp_course.distributed.process_group import World
from ddp_course.ladder.comparison import Comparison, Rung, batches, ddp, mistake, sgd, weights
from ddp_course.ladder.setting import VOCABULARY, Setting, share
from ddp_course.ladder.tolerance import REORDERED, reordered


class Towers(nn.Module):
    """A window's inputs and its targets, as two texts, become vectors of length 1; the temperature is learned."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        torch.manual_seed(setting.seed)
        self.towers = nn.ModuleList(
            nn.Sequential(nn.EmbeddingBag(VOCABULARY, setting.width), nn.Tanh(), nn.Linear(setting.width, 8))
            for _ in range(2)
        )
        self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))
        self.double()

    def forward(self, *texts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, second = (normalize(tower(text), dim=1) for tower, text in zip(self.towers, texts, strict=True))
        return first, second, self.log_scale.exp()


class Gather(torch.autograd.Function):
    """The rows of all ranks, in their order. The gradient of a row is the sum of what every rank has for it."""

    @staticmethod
    def forward(ctx, rows: Tensor) -> Tensor:
        return gather_without_gradient(rows)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]


def gather_without_gradient(rows: Tensor) -> Tensor:
    parts = [torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.detach().contiguous())
    return torch.cat(parts)


def put_own_slice_in(rows: Tensor) -> Tensor:
    parts = list(gather_without_gradient(rows).chunk(dist.get_world_size()))
    parts[dist.get_rank()] = rows
    return torch.cat(parts)


def loss_of(rows: tuple[Tensor, Tensor], columns: tuple[Tensor, Tensor], scale: Tensor, first: int = 0) -> Tensor:
    """The mean over rows of both texts, each against all columns of the other; the right column of row i is first + i.

    rows, columns: of each text, (rows or columns, 8).
    """
    labels = first + torch.arange(len(rows[0]))
    of_first = cross_entropy(scale * rows[0] @ columns[1].T, labels)
    of_second = cross_entropy(scale * rows[1] @ columns[0].T, labels)
    return (of_first + of_second) / 2


def whole(setting: Setting, world: World) -> Comparison:
    """Each rank computes the loss of all rows, gathered with their gradient. DDP's mean takes the factor N out."""

    def loss(first: Tensor, second: Tensor, scale: Tensor) -> Tensor:
        gather = put_own_slice_in if setting.fault == "own_slice" else Gather.apply
        rows = gather(first), gather(second)
        return loss_of(rows, rows, scale)

    return compared(setting, world, loss)


def local(setting: Setting, world: World) -> Comparison:
    """Each rank computes the loss of its own rows against the columns of all, gathered with their gradient."""

    def loss(first: Tensor, second: Tensor, scale: Tensor) -> Tensor:
        rows = first, second
        if setting.fault == "own_columns":
            return loss_of(rows, rows, scale)
        gather = gather_without_gradient if setting.fault == "columns_without_gradient" else Gather.apply
        start = 0 if setting.fault == "labels_from_0" else world.rank * len(first)
        return loss_of(rows, (gather(first), gather(second)), scale, start)

    return compared(setting, world, loss)


def compared(setting: Setting, world: World, loss) -> Comparison:
    """Training with `loss` of a rank's embeddings under DDP, and one process with all rows."""
    replica, model = ddp(Towers(setting)), Towers(setting)
    optimizers = [sgd(replica.parameters()), sgd(model.parameters())]
    replicas, reference = [weights(replica)], [weights(model)]
    for batch in batches(setting):
        loss(*replica(*share(batch, world.rank, world.size))).backward()
        first, second, scale = model(*batch)
        loss_of((first, second), (first, second), scale).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        replicas.append(weights(replica))
        reference.append(weights(model))
    return Comparison(replicas, reference)


def equal_shares(setting: Setting, ranks: int) -> Setting:
    """The mean over ranks of their means is the mean over all rows if each has as many."""
    return replace(setting, windows=ranks * math.ceil(setting.windows / ranks))


TOPIC = "losses over all ranks"
WHOLE = Rung("contrastive loss of all rows", TOPIC, whole, reordered, REORDERED, fits=equal_shares)
LOCAL = Rung("contrastive loss of own rows", TOPIC, local, reordered, REORDERED, fits=equal_shares)
RUNGS = [
    WHOLE,
    LOCAL,
    mistake(
        "own slice without a factor",
        "own_slice",
        WHOLE,
        "each rank has the gradient of its own rows alone, which is whole, and DDP's mean divides it by N",
    ),
    mistake(
        "columns without gradient",
        "columns_without_gradient",
        LOCAL,
        "dist.all_gather carries no gradient: a row learns as a row, and not as a column",
        differs_from=1,
    ),
    mistake(
        "own columns only", "own_columns", LOCAL, "each row is compared with the rows of its rank: an easier question"
    ),
    mistake("labels from 0", "labels_from_0", LOCAL, "on rank 1 the right column of row 0 is that of rank 0's row 0"),
]
