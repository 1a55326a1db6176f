"""Pipeline parallelism: the micro-batches of a step go through the stages of a model, one stage per rank."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor

from ddp_course.distributed.mesh import Axis

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


class Pipeline:
    """torch's pipeline schedule around `stage`. The first stage takes tokens, each other stage the previous output.

    The last stage also takes `targets` and returns a *summed* loss, so the gradients of micro-batches add up to that of
    the batch, and torch must not divide them by their number (`scale_grads=False`).
    """

    def __init__(self, stage: nn.Module, axis: Axis, device: torch.device, micro_batches: int, schedule: str) -> None:
        self._first, self._last = axis.rank == 0, axis.rank == axis.size - 1
        self._scale = 1.0
        self._schedule = SCHEDULES[schedule](
            PipelineStage(stage, axis.rank, axis.size, device, group=axis.group),
            micro_batches,
            loss_fn=lambda loss_sum, targets: loss_sum * self._scale,
            scale_grads=False,
        )

    def forward_backward(self, inputs: Tensor, targets: Tensor, scale: float, **keywords: Tensor) -> Tensor:
        """Run a step: add the gradients of `scale` times the summed loss. Call it on every stage.

        inputs, targets: all micro-batches concatenated, as are the `keywords`, which every stage takes.
        Returns the summed loss on the last stage, 0 on the others.
        """
        self._scale = scale
        return self._run(self._schedule.step, inputs, targets, keywords) / scale

    @torch.no_grad()
    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the summed loss like `forward_backward`, without gradients."""
        self._scale = 1.0
        return self._run(self._schedule.eval, inputs, targets, {})

    def _run(self, run: Callable[..., object], inputs: Tensor, targets: Tensor, keywords: dict[str, Tensor]) -> Tensor:
        """Call `run`, the schedule's `step` or `eval`; returns the sum of the losses of all micro-batches."""
        losses: list[Tensor] = []
        positional = (inputs,) if self._first else ()
        if self._last:  # "targets" is an argument of the stage, "target" and "losses" of the schedule
            keywords = keywords | {"targets": targets, "target": targets, "losses": losses}
        run(*positional, **keywords, return_outputs=False)
        return sum((loss.detach() for loss in losses), start=torch.zeros((), device=inputs.device))


def add_other_end(gradient: Tensor, axis: Axis) -> None:
    """Sum the gradient of a tensor that first and last stage share, in place. Call it on these two stages."""
    gradient = gradient.to_local() if isinstance(gradient, DTensor) else gradient
    other = axis.size - 1 - axis.rank
    gradient += axis.exchange(gradient, other, other)
