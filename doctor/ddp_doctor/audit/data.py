"""Watches DataLoaders: which indices each rank drew, and a checksum of every sample that came of them."""

import functools

import torch

from .log import where
from .tensors import rows

INDICES = 100_000  # are written down in all


def watch_loaders(log):
    from torch.utils.data import dataloader

    loaders = _Loaders(log)
    iterator = dataloader._BaseDataLoaderIter
    iterator.__init__ = log.watched(iterator.__init__, lambda args, kwargs: loaders.begin(args[0], args[1]))
    iterator._reset = log.watched(iterator._reset, loaders.again)
    iterator._next_index = log.watched(iterator._next_index, lambda args, _: functools.partial(loaders.draws, args[0]))
    iterator.__next__ = loaders.delivers(iterator.__next__)


class _Loaders:
    def __init__(self, log):
        self.log = log
        self.numbers, self.epochs = {}, {}  # by the id of a loader, which is kept so that no other gets it
        self.kept, self.written = [], 0

    def begin(self, iterator, loader):
        if id(loader) not in self.numbers:
            self.kept.append(loader)
        number = self.numbers.setdefault(id(loader), len(self.numbers))
        epoch = self.epochs[number] = self.epochs.get(number, -1) + 1
        iterator._ddp_doctor_epoch = (number, epoch)
        sampler = _innermost(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
        self.log.event(
            "epoch",
            loader=number,
            epoch=epoch,
            frames=where(),
            batch_size=loader.batch_size,
            distributed=isinstance(sampler, torch.utils.data.DistributedSampler),
            shuffles=bool(getattr(sampler, "shuffle", isinstance(sampler, torch.utils.data.RandomSampler))),
            size=_size(loader.dataset),
        )

    def again(self, args, kwargs):
        first = args[2] if len(args) > 2 else kwargs.get("first_iter", False)
        if not first:
            self.begin(args[0], args[1])

    def draws(self, iterator, drawn):
        number, epoch = iterator._ddp_doctor_epoch
        drawn = drawn if isinstance(drawn, list | tuple) else [drawn]
        self.written += len(drawn)
        if self.written <= INDICES and all(isinstance(index, int) for index in drawn):
            self.log.event("indices", most=INDICES, loader=number, epoch=epoch, indices=list(drawn))

    def delivers(self, function):
        @functools.wraps(function)
        def delivers(iterator):
            try:
                batch = function(iterator)
            except StopIteration:
                self.log.quietly(self.exhausted, iterator)
                raise
            self.log.quietly(self.batch, iterator, batch)
            return batch

        return delivers

    def exhausted(self, iterator):
        number, epoch = iterator._ddp_doctor_epoch
        self.log.event("exhausted", loader=number, epoch=epoch)

    def batch(self, iterator, batch):
        number, epoch = iterator._ddp_doctor_epoch
        sums, rich = _rows(batch)
        self.log.event("batch", loader=number, epoch=epoch, gradients=torch.is_grad_enabled(), rows=sums, rich=rich)


def _innermost(sampler):
    """The sampler that draws, below those that make batches of it."""
    while below := getattr(sampler, "sampler", None) or getattr(sampler, "batch_sampler", None):
        sampler = below
    return sampler


def _size(dataset):
    try:
        return len(dataset)
    except TypeError:
        return None


def _rows(batch):
    """A checksum of each sample over all tensors of the batch; None if they have no common first dimension."""
    parts = list(batch.values()) if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else [batch]
    return rows([part for part in parts if isinstance(part, torch.Tensor) and part.dim()])
