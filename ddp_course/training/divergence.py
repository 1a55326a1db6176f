"""A loss that is not finite is reported at once, and ends the run after some steps: decided alike on all ranks."""

import math

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_course.base.errors import InputError
from ddp_course.distributed.process_group import World


class LossWatch:
    """Counts steps in a row whose loss is not finite; more than `most` of them end the run.

    A gradient scaler that skips a step because float16 overflowed in backward is no such case: the loss was finite.
    """

    def __init__(self, world: World, most: int) -> None:
        self._world, self._most = world, most
        self._in_a_row = 0

    def see(self, step: int, loss: float, own: float | Tensor) -> None:
        """After step `step`: the loss of the global batch, which is the same on all ranks, and this rank's part.

        Rank 0 says whose part is not finite. Collective in that case alone, so every rank has to call it with the
        same `loss`. Raises InputError on every rank once it has happened `most` times in a row.
        """
        if math.isfinite(loss):
            self._in_a_row = 0
            return
        self._in_a_row += 1
        device = self._world.device
        flags = [torch.zeros(1, device=device) for _ in range(self._world.size)]
        own = own.item() if isinstance(own, Tensor) else own  # float() warns of a loss that has a gradient
        dist.all_gather(flags, torch.tensor([float(not math.isfinite(own))], device=device))
        ranks = [str(rank) for rank, flag in enumerate(flags) if flag.item()]
        who = f"on rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}" if ranks else "in the sum over the ranks"
        if self._world.is_main:
            self._world.warn(
                f"the loss of step {step} is {loss}, {who} ({self._in_a_row} in a row; "
                f"--max-nonfinite-steps {self._most} end the run)"
            )
        if self._in_a_row >= self._most:
            raise InputError(
                f"the run has diverged: the loss of step {step} is {loss}, {who}, as in the {self._in_a_row} steps up "
                "to it; the checkpoints from before are whole: go on from one of them with a lower --learning-rate"
            )
