"""What the three by-hand data parallel wrappers have in common: equal at the start, silent on request."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from ddp_course.distributed.by_hand.broadcast import broadcast_module


class Replica(nn.Module):
    """One rank's copy of `module`, equal to rank 0's from construction on. Build it on every rank.

        replica = BucketedDataParallel(model)
        for inputs, targets in micro_batches[:-1]:
            with replica.no_sync():
                loss(replica(inputs), targets).backward()
        loss(replica(last_inputs), last_targets).backward()
        replica.finish_gradient_synchronization()
        optimizer.step()

    After `finish_gradient_synchronization()` each `.grad` is the mean over the ranks of what they had accumulated.
    A parameter that got no gradient on some ranks counts as zero there; one that got none on any rank keeps None,
    as on one process. Parameters frozen at construction are left alone; unfreeze before you wrap.
    Weights for a checkpoint: `replica.module.state_dict()`.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        broadcast_module(module)
        self.module = module
        # `parameters()` gives a tied tensor once, so its gradient is reduced once.
        self._trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._synchronizes = True

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only add to this rank's own gradients; what they add is sent with the next
        backward outside, or by `finish_gradient_synchronization()`. Every rank has to do the same.
        """
        before, self._synchronizes = self._synchronizes, False
        try:
            yield
        finally:
            self._synchronizes = before

    @abstractmethod
    def finish_gradient_synchronization(self) -> None:
        """Call after backward and before `optimizer.step()`. Inside `no_sync()` it does nothing."""
