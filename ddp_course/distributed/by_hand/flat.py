"""Data parallel in its plainest form: after backward, all gradients in one message."""

from torch import nn

from ddp_course.distributed.by_hand.message import GradientMessage, by_type
from ddp_course.distributed.by_hand.replica import Replica


class FlatDataParallel(Replica):
    """Sends nothing during backward, then all gradients at once (one message for each dtype).

    The fewest messages that are possible, and none of them hidden behind computation. Backward passes add up in
    `.grad` until `finish_gradient_synchronization()`, so accumulation needs no `no_sync()`; it is there so that
    the three wrappers can take each other's place.
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
