"""Report a loss that is not finite, and end the run after several of them in a row, on all ranks at the same step."""

import math

from torch import Tensor

from ddp_course.base.errors import InputError
from ddp_course.distributed.process_group import World
from ddp_course.distributed.sync import gather_objects


class LossWatch:
    """Counts successive steps whose loss is not finite; `most` of them end the run.

    A step that a gradient scaler skips, because float16 overflowed in backward, does not count: its loss is finite.
    """

    def __init__(self, world: World, most: int) -> None:
        self._world, self._most = world, most
        self._in_a_row = 0

    def check(self, step: int, loss: float, own_loss: float | Tensor) -> None:
        """Check the loss of step `step`: that of the global batch, equal on all ranks, and this rank's part.

        If it is not finite, the ranks exchange whether their parts are (collective), and rank 0 prints a warning. Every
        rank has to call this with the same `loss`. Raises InputError on every rank at the `most`-th such step in a row.
        """
        if math.isfinite(loss):
            self._in_a_row = 0
            return
        self._in_a_row += 1
        own_loss = own_loss.item() if isinstance(own_loss, Tensor) else own_loss  # float() would warn of a gradient
        is_finite_by_rank = gather_objects(math.isfinite(own_loss))
        ranks = [str(rank) for rank, is_finite in enumerate(is_finite_by_rank) if not is_finite]
        where = f"on rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}" if ranks else "in the sum over the ranks"
        if self._world.is_main:
            self._world.warn(
                f"the loss of step {step} is {loss}, {where} ({self._in_a_row} in a row; "
                f"--max-nonfinite-steps {self._most} end the run)"
            )
        if self._in_a_row >= self._most:
            raise InputError(
                f"the run has diverged: the loss of step {step} is {loss}, {where}, as in the {self._in_a_row} steps "
                "up to it; the checkpoints from before are whole: go on from one of them with a lower --learning-rate"
            )
