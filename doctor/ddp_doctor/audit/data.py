"""Watches DataLoaders: the indices that each rank drew, and a checksum of every sample in the batches."""

import functools

import torch

from .log import where
from .tensors import sample_checksums

MAX_INDICES = 100_000  # recorded in all


def watch_loaders(log):
    from torch.utils.data import dataloader

    loaders = _Loaders(log)
    iterator = dataloader._BaseDataLoaderIter
    iterator.__init__ = log.watched(iterator.__init__, lambda args, kwargs: loaders.record_epoch(args[0], args[1]))
    iterator._reset = log.watched(iterator._reset, loaders.before_reset)
    iterator._next_index = log.watched(
        iterator._next_index, lambda args, _: functools.partial(loaders.record_indices, args[0])
    )
    iterator.__next__ = loaders.watched_next(iterator.__next__)


class _Loaders:
    def __init__(self, log):
        self.log = log
        self.numbers = {}  # loader -> its number
        self.epochs = {}  # number of a loader -> number of its current epoch
        self.index_count = 0

    def record_epoch(self, iterator, loader):
        number = self.numbers.setdefault(loader, len(self.numbers))
        epoch = self.epochs[number] = self.epochs.get(number, -1) + 1
        iterator._ddp_doctor_epoch = {"loader": number, "epoch": epoch}
        sampler = _innermost(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
        self.log.event(
            "epoch",
            **iterator._ddp_doctor_epoch,
            frames=where(),
            batch_size=loader.batch_size,
            distributed=isinstance(sampler, torch.utils.data.DistributedSampler),
            shuffles=bool(getattr(sampler, "shuffle", isinstance(sampler, torch.utils.data.RandomSampler))),
            size=_size(loader.dataset),
        )

    def before_reset(self, args, kwargs):
        """Persistent workers: the iterator of the first epoch is reset for each later one."""
        is_first_epoch = args[2] if len(args) > 2 else kwargs.get("first_iter", False)
        if not is_first_epoch:
            self.record_epoch(args[0], args[1])

    def record_indices(self, iterator, indices):
        indices = indices if isinstance(indices, list | tuple) else [indices]
        self.index_count += len(indices)
        if self.index_count <= MAX_INDICES and all(isinstance(index, int) for index in indices):
            self.log.event("indices", limit=MAX_INDICES, **iterator._ddp_doctor_epoch, indices=list(indices))

    def watched_next(self, function):
        @functools.wraps(function)
        def watched(iterator):
            try:
                batch = function(iterator)
            except StopIteration:
                self.log.quietly(self.record_exhausted, iterator)
                raise
            self.log.quietly(self.record_batch, iterator, batch)
            return batch

        return watched

    def record_exhausted(self, iterator):
        self.log.event("exhausted", **iterator._ddp_doctor_epoch)

    def record_batch(self, iterator, batch):
        parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else [batch]
        samples, distinctive = sample_checksums(part for part in parts if isinstance(part, torch.Tensor))
        facts = {"gradients": torch.is_grad_enabled(), "samples": samples, "distinctive": distinctive}
        self.log.event("batch", **iterator._ddp_doctor_epoch, **facts)


def _innermost(sampler):
    """The sampler that draws the indices, inside of the batch samplers that wrap it."""
    while inner := getattr(sampler, "sampler", None) or getattr(sampler, "batch_sampler", None):
        sampler = inner
    return sampler


def _size(dataset):
    try:
        return len(dataset)
    except TypeError:
        return None
