"""A tensor in few numbers: its checksum, some values, its sums, and the samples that a batch holds."""

import ctypes
import zlib

import torch

SAMPLES = 6  # values of a tensor
ROWS = 512  # samples of a batch


def checksum(tensor):
    """A checksum of the tensor's bytes; None unless it is a plain dense tensor (not sharded, sparse, or meta)."""
    if not _is_plain(tensor):
        return None
    flat = tensor.detach().contiguous().reshape(-1).cpu()
    return zlib.crc32(ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())) if flat.numel() else 0


def some_values(tensor):
    """A few of its values, always from the same places; None for what is no plain dense tensor."""
    if tensor is None or not _is_plain(tensor):
        return None
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLES)][:SAMPLES].double().tolist()


def sums(tensor):
    """[sum, sum of magnitudes], which rounding hardly changes."""
    if not _is_plain(tensor):
        return None
    wide = tensor.detach().double()
    return [wide.sum().item(), wide.abs().sum().item()]


def rows(tensors):
    """(checksum of each sample over all tensors, or None; whether two can hardly be equal by chance)."""
    sizes = {len(tensor) for tensor in tensors}
    if len(sizes) != 1 or not 0 < min(sizes) <= ROWS:
        return None, False
    sums = [zlib.crc32(repr([checksum(tensor[row]) for tensor in tensors]).encode()) for row in range(sizes.pop())]
    return sums, any(_is_rich(tensor) for tensor in tensors)


def _is_rich(tensor):
    """Fractions, or many different whole numbers: two samples are equal only if they are the same one."""
    row = tensor[0]
    if tensor.is_floating_point() and bool((tensor != tensor.round()).any()):
        return True
    return row.numel() >= 8 and len(row.unique()) >= 5


def _is_plain(tensor):
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return plain and tensor.layout == torch.strided and tensor.device.type != "meta"
