"""Finds the tensors in the local variables of the script's functions."""

import sys
from traceback import walk_stack

import torch

from .log import kind_of
from .tensors import checksum

MAX_DEPTH, MAX_TENSORS, MAX_VALUES = 4, 400, 5_000_000


def tensors_in(value, name="", depth=MAX_DEPTH):
    """Yields (name, tensor) of each tensor within containers, modules and objects of the script's own classes."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth == 0 or isinstance(value, type):
        return
    elif isinstance(value, torch.nn.Module):
        for key, tensor in value.state_dict(keep_vars=True).items():
            if isinstance(tensor, torch.Tensor):
                yield f"{name}.{key}", tensor
    elif isinstance(value, dict):
        for key in list(value)[:MAX_TENSORS]:
            yield from tensors_in(value[key], f"{name}[{key!r}]", depth - 1)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value[:MAX_TENSORS]):
            yield from tensors_in(item, f"{name}[{number}]", depth - 1)
    elif _is_own(value):
        for key, item in list(vars(value).items()):
            yield from tensors_in(item, f"{name}.{key}", depth - 1)


def _is_own(value):
    module = type(value).__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    return hasattr(value, "__dict__") and (module == "__main__" or bool(file) and kind_of(file) == "own")


def variables(skip):
    """{"function: name": tensor} of the local variables of the script's functions that run now.

    skip   ids of modules and tensors to leave out
    """
    tensors = {}
    for frame, _ in walk_stack(sys._getframe(1)):
        if kind_of(frame.f_code.co_filename) == "own":
            for name, value in list(frame.f_locals.items()):
                if isinstance(value, torch.nn.parallel.DistributedDataParallel) or id(value) in skip:
                    continue
                for path, tensor in tensors_in(value, name):
                    if id(tensor) not in skip and tensor.dim() and tensor.dtype != torch.uint8 and not tensor.grad_fn:
                        tensors[f"{frame.f_code.co_name}: {path}"] = tensor
                    if len(tensors) >= MAX_TENSORS:
                        return tensors
    return tensors


def checksums(skip):
    """{"function: name": checksum} of variables(skip), up to MAX_VALUES values in all."""
    values_left, sums = MAX_VALUES, {}
    for name, tensor in variables(skip).items():
        values_left -= tensor.numel()
        if values_left > 0 and (value := checksum(tensor)) is not None:
            sums[name] = value
    return sums


def names_of(value, skip):
    """The names in variables(skip) of the tensors within `value`, which are found by their memory."""
    addresses = {tensor.data_ptr() for _, tensor in tensors_in(value) if tensor.numel()}
    return [name for name, tensor in variables(skip).items() if tensor.numel() and tensor.data_ptr() in addresses]
