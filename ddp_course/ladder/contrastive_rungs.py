"""Rungs about losses over all ranks: CLIP's contrastive loss, which compares each row with the rows of every rank."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course.distributed.process_group import World
from ddp_course.ladder.axes import up_to_multiple
from ddp_course.ladder.comparison import Comparison, Rung, batches, mistake, train
from ddp_course.ladder.setting import VOCABULARY, Batch, Setting, share
from ddp_course.ladder.tolerance import REORDERED


class Towers(nn.Module):
    """Maps a window's inputs and its targets, as two texts, to vectors of norm 1. The temperature is learned."""

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
    """All-gather the rows of all ranks in rank order. Backward sums the gradients that the ranks have for a row."""

    @staticmethod
    def forward(ctx, rows: Tensor) -> Tensor:
        return gather_without_gradient(rows)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]


def gather_without_gradient(rows: Tensor) -> Tensor:
    """The rows of all ranks in rank order, as constants: dist.all_gather has no backward."""
    parts = [torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.detach().contiguous())
    return torch.cat(parts)


def gather_with_own_slice(rows: Tensor) -> Tensor:
    """The mistake: the rows of all ranks, of which only this rank's have a gradient."""
    parts = list(gather_without_gradient(rows).chunk(dist.get_world_size()))
    parts[dist.get_rank()] = rows
    return torch.cat(parts)


def contrastive_loss(
    rows: tuple[Tensor, Tensor], columns: tuple[Tensor, Tensor], scale: Tensor, start: int = 0
) -> Tensor:
    """The mean over the rows of both texts; the correct column for row i is column start + i of the other text.

    rows, columns: a tensor for each text, (rows, 8) and (columns, 8).
    """
    labels = start + torch.arange(len(rows[0]))
    first_loss = cross_entropy(scale * rows[0] @ columns[1].T, labels)
    second_loss = cross_entropy(scale * rows[1] @ columns[0].T, labels)
    return (first_loss + second_loss) / 2


def loss_of_all_rows(setting: Setting, world: World) -> Comparison:
    """Each rank computes the loss of all rows. Backward of Gather sums over N ranks; DDP's mean divides by N again."""

    def loss(first: Tensor, second: Tensor, scale: Tensor) -> Tensor:
        gather = gather_with_own_slice if setting.fault == "own_slice" else Gather.apply
        rows = gather(first), gather(second)
        return contrastive_loss(rows, rows, scale)

    return compare_loss(setting, world, loss)


def loss_of_own_rows(setting: Setting, world: World) -> Comparison:
    """Each rank computes the loss of its own rows against the columns of all ranks, gathered with gradients."""

    def loss(first: Tensor, second: Tensor, scale: Tensor) -> Tensor:
        rows = first, second
        if setting.fault == "own_columns":
            return contrastive_loss(rows, rows, scale)
        gather = gather_without_gradient if setting.fault == "columns_without_gradient" else Gather.apply
        start = 0 if setting.fault == "labels_from_0" else world.rank * len(first)
        return contrastive_loss(rows, (gather(first), gather(second)), scale, start)

    return compare_loss(setting, world, loss)


def compare_loss(setting: Setting, world: World, loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Comparison:
    """Train under DDP with `loss` of each rank's embeddings, and in one process with the loss of all rows."""
    replica, model = DDP(Towers(setting)), Towers(setting)

    def gradients(batch: Batch) -> None:
        loss(*replica(*share(batch, world.rank, world.size))).backward()

    def reference_gradients(batch: Batch) -> None:
        first, second, scale = model(*batch)
        contrastive_loss((first, second), (first, second), scale).backward()

    global_batches = batches(setting)
    return Comparison(train(replica, global_batches, gradients), train(model, global_batches, reference_gradients))


def equal_shares(setting: Setting, ranks: int) -> Setting:
    """Make windows divide over the ranks: only then is the mean of the ranks' means the mean over all rows."""
    return replace(setting, windows=up_to_multiple(setting.windows, ranks))


TOPIC = "losses over all ranks"
WHOLE = Rung("contrastive loss of all rows", TOPIC, loss_of_all_rows, REORDERED, fits=equal_shares)
LOCAL = Rung("contrastive loss of own rows", TOPIC, loss_of_own_rows, REORDERED, fits=equal_shares)
RUNGS = [
    WHOLE,
    LOCAL,
    mistake("own slice without a factor", "own_slice", WHOLE),
    mistake("columns without gradient", "columns_without_gradient", LOCAL, differs_from=1),
    mistake("own columns only", "own_columns", LOCAL),
    mistake("labels from 0", "labels_from_0", LOCAL),
]
