"""Data parallel in its simplest form: after backward, all gradients in one message."""

from torch import nn

from ddp_course.distributed.by_hand.message import GradientMessage, by_type
from ddp_course.distributed.by_hand.replica import Replica


class FlatDataParallel(Replica):
    """All-reduces all gradients after backward, in one message per dtype.

    This is the smallest number of messages, and none of them overlaps with computation. Backward passes add up in
    `.grad` until `finish_gradient_synchronization()`, so accumulation does not need `no_sync()`, which exists because
    the three wrappers have the same interface.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._messages = [GradientMessage(group) for group in by_type(self._trainable)]

    def finish_gradient_synchronization(self) -> None:
        if not self._synchronizes:
            return
        for message in self._messages:
            message.start()
        for message in self._messages:
            message.finish()
