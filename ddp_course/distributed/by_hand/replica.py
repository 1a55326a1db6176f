"""The base class of the three by-hand data parallel wrappers: broadcast at construction, and no_sync."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from ddp_course.distributed.by_hand.broadcast import broadcast_module


class Replica(nn.Module):
    """One rank's copy of `module`, made equal to rank 0's at construction. Build it on every rank.

        replica = BucketedDataParallel(model)
        for inputs, targets in micro_batches[:-1]:
            with replica.no_sync():
                loss(replica(inputs), targets).backward()
        loss(replica(last_inputs), last_targets).backward()
        replica.finish_gradient_synchronization()
        optimizer.step()

    After `finish_gradient_synchronization()` each `.grad` is the mean over the ranks of their accumulated gradients.
    A missing gradient counts as zero; if no rank has a gradient of a parameter, it stays None, as in one process.
    Parameters frozen at construction are ignored; unfreeze before you wrap.
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
        """Accumulate gradients without communication. Every rank has to do the same.

        The gradients are sent in the next backward pass outside, or by `finish_gradient_synchronization()`.
        """
        previous, self._synchronizes = self._synchronizes, False
        try:
            yield
        finally:
            self._synchronizes = previous

    def finish_gradient_synchronization(self) -> None:
        """Return when every `.grad` is the mean over the ranks; send first what has not been sent.

        Call it after backward and before `optimizer.step()`. Inside `no_sync()` it does nothing.
        """
        raise NotImplementedError
