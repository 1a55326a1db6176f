"""Rungs about Muon, whose step needs whole matrices: ZeRO-1 with an owner per matrix, and the mistake of sharding."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_course.distributed.by_hand import sharded_muon
from ddp_course.distributed.by_hand.broadcast import broadcast_tensors
from ddp_course.distributed.process_group import World
from ddp_course.ladder.batch_rungs import data_parallel
from ddp_course.ladder.comparison import Comparison, Rung, mistake
from ddp_course.ladder.setting import Setting
from ddp_course.ladder.tolerance import REORDERED


def muon(setting: Setting, world: World) -> Comparison:
    """Muon trains the matrices. Each has an owner, which computes and broadcasts its step. Vectors are not trained."""
    optimizer_class = CutMuon if setting.fault == "cut_matrices" else sharded_muon
    return data_parallel(
        setting,
        world,
        make_optimizer=partial(matrix_optimizer, optimizer_class),
        make_reference_optimizer=partial(matrix_optimizer, torch.optim.Muon),
    )


def matrix_optimizer(optimizer_class: Callable, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer of the matrices among the parameters."""
    return optimizer_class([parameter for parameter in parameters if parameter.dim() == 2], lr=0.02)


class CutMuon(torch.optim.Muon):
    """The mistake: each rank takes Muon's step on its rows of every matrix, which only an elementwise optimizer may."""

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float) -> None:
        self._matrices, self._ranks = list(matrices), dist.get_world_size()
        super().__init__([nn.Parameter(self._rows(matrix.detach())) for matrix in self._matrices], lr)

    def _rows(self, matrix: Tensor) -> Tensor:
        return matrix.tensor_split(self._ranks)[dist.get_rank()]  # a view

    def step(self) -> None:
        for rows, matrix in zip(self.param_groups[0]["params"], self._matrices, strict=True):
            rows.grad = self._rows(matrix.grad)
        super().step()
        parts = [part for matrix in self._matrices for part in matrix.detach().tensor_split(self._ranks)]
        broadcast_tensors(parts, list(range(self._ranks)) * len(self._matrices))

    def zero_grad(self) -> None:
        for matrix in self._matrices:
            matrix.grad = None


ROUNDED = replace(
    REORDERED,
    because="Muon rounds a gradient to bfloat16 before it makes it orthogonal, so gradients that differ by float64 "
    "roundoffs lead to equal steps; the remaining error is as for SGD",
)
MUON = Rung("by hand: ZeRO-1 of Muon", "shards", muon, ROUNDED)
RUNGS = [MUON, mistake("Muon on rows of matrices", "cut_matrices", MUON)]
