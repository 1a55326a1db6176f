"""The gradients of several parameters in one all-reduce, with the number of ranks that have each gradient."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from ddp_course.base.errors import InputError


class GradientMessage:
    """Averages the gradients of `parameters` (all of one dtype and device) over the ranks, in one all-reduce.

    Each parameter costs its own elements and one more: the number of ranks on which it has a gradient. A rank without
    a gradient sends zeros, so that the ranks never pair the gradients of different parameters. The message is a copy,
    so `.grad` may change while it is sent. It costs as much memory as the gradients themselves.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        sizes = [parameter.numel() for parameter in parameters]
        self._buffer = parameters[0].new_empty(sum(sizes) + len(sizes), requires_grad=False)
        *parts, self._owners = self._buffer.split([*sizes, len(sizes)])
        self._slots = [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]
        self._work: dist.Work | None = None

    @torch.no_grad()
    def start(self) -> None:
        """Pack the gradients and start the all-reduce; does not wait for it.

        Each gradient is divided by the number of ranks *before* the sum, while it is packed, as torch's DDP does: so
        a sum over many ranks stays within the range of float16.
        Raises InputError for a sparse gradient.
        """
        share = 1 / dist.get_world_size()
        for parameter, slot in zip(self.parameters, self._slots, strict=True):
            if parameter.grad is None:
                slot.zero_()
            elif parameter.grad.is_sparse:
                raise InputError(
                    f"A parameter of shape {tuple(parameter.shape)} has a sparse gradient; only dense ones can be "
                    "packed: build its embedding with sparse=False."
                )
            else:
                torch.mul(parameter.grad, share, out=slot)
        self._owners.copy_(torch.tensor([float(parameter.grad is not None) for parameter in self.parameters]))
        self._work = dist.all_reduce(self._buffer, async_op=True)

    @torch.no_grad()
    def finish(self) -> None:
        """Wait for the mean and copy it into `.grad`; if no rank had a gradient, it stays None."""
        self._work.wait()
        self._work = None
        for number, (parameter, slot) in enumerate(zip(self.parameters, self._slots, strict=True)):
            if parameter.grad is not None:
                parameter.grad.copy_(slot)
            elif self._owners[number] != 0:
                parameter.grad = slot.clone().view_as(parameter)


def by_type(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group parameters by dtype and device, which have to be equal within a message. The order is kept."""
    groups: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    return list(groups.values())
