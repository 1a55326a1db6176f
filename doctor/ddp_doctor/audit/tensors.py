"""Summaries of tensors: a checksum, some values, sums, and a checksum of each sample of a batch."""

import ctypes
import zlib

import torch

MAX_VALUES = 6  # of a tensor
MAX_SAMPLES = 512  # of a batch


def checksum(tensor):
    """A checksum of the tensor's bytes; None unless it is a plain dense tensor (not sharded, sparse, or meta)."""
    if not _is_plain(tensor):
        return None
    flat = tensor.detach().contiguous().reshape(-1).cpu()
    return zlib.crc32(ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())) if flat.numel() else 0


def some_values(tensor):
    """Up to MAX_VALUES values of the tensor as floats, always from the same indices; None unless plain and dense."""
    if tensor is None or not _is_plain(tensor):
        return None
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // MAX_VALUES)][:MAX_VALUES].double().tolist()


def sums(tensor):
    """[sum, sum of absolute values], in float64; None unless the tensor is plain and dense."""
    if not _is_plain(tensor):
        return None
    wide = tensor.detach().double()
    return [wide.sum().item(), wide.abs().sum().item()]


def sample_checksums(tensors):
    """(a checksum of each sample over all tensors, whether different samples have different checksums).

    (None, False) where the tensors have no common first dimension, or more than MAX_SAMPLES samples.
    """
    tensors = [tensor for tensor in tensors if tensor.dim()]
    sizes = {len(tensor) for tensor in tensors}
    if len(sizes) != 1 or not 0 < min(sizes) <= MAX_SAMPLES:
        return None, False
    sums = [zlib.crc32(repr([checksum(tensor[i]) for tensor in tensors]).encode()) for i in range(sizes.pop())]
    return sums, any(_is_distinctive(tensor) for tensor in tensors)


def _is_distinctive(tensor):
    """Whether two samples can hardly be equal by chance: they hold fractions, or many different integers."""
    sample = tensor[0]
    if tensor.is_floating_point() and bool((tensor != tensor.round()).any()):
        return True
    return sample.numel() >= 8 and len(sample.unique()) >= 5


def _is_plain(tensor):
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return plain and tensor.layout == torch.strided and tensor.device.type != "meta"
