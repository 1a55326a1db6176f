"""Deferred initialization: a model without memory, and each parameter's initial value on request.

A rank that holds a part of a model should not have to allocate the whole one to get the initial values of its part.
Here the model is built on torch's meta device, where tensors have a shape and no memory. The random numbers are drawn
all the same, into memory that is reused, so that every parameter gets the value that it has in a model built in one
process. That takes as long as building the whole model, and a few times the memory of its largest parameter.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

Model = TypeVar("Model", bound=nn.Module)

RANDOM = torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default
CONSTANT = torch.ops.aten.zero_.default, torch.ops.aten.fill_.Scalar


@dataclass(frozen=True)
class Write:
    """An operation that sets all elements of a tensor, and the state of torch's generator before it."""

    operation: Callable[..., Tensor]
    arguments: tuple
    shape: torch.Size
    dtype: torch.dtype
    generator_state: Tensor

    def value(self) -> Tensor:
        """Repeat the operation on a new tensor of the CPU, and return that."""
        generator = torch.Generator()
        generator.set_state(self.generator_state)
        keywords = {"generator": generator} if self.operation in RANDOM else {}
        return self.operation(torch.empty(self.shape, dtype=self.dtype), *self.arguments, **keywords)


class Recorder(TorchDispatchMode):
    """Keeps the last write of each tensor on the meta device, and draws the random numbers that it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.last_write: dict[Tensor, Write] = {}
        self._scratch = torch.empty(0, device="cpu")  # one for all tensors: saved states between many would fragment it

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        if not operation._schema.is_mutable or not args[0].is_meta:
            return result
        if operation not in RANDOM + CONSTANT or (kwargs or {}).get("generator"):
            raise NotImplementedError(f"{operation} writes to a parameter, and cannot be repeated without its content")
        tensor, *arguments = args
        write = Write(operation, tuple(arguments), tensor.shape, tensor.dtype, torch.get_rng_state())
        if operation in RANDOM:
            operation(self._memory_for(tensor), *arguments)
        self.last_write[tensor] = write
        return result

    def _memory_for(self, tensor: Tensor) -> Tensor:
        if self._scratch.dtype != tensor.dtype or self._scratch.numel() < tensor.numel():
            self._scratch = torch.empty(tensor.numel(), dtype=tensor.dtype, device="cpu")
        return self._scratch[: tensor.numel()].view(tensor.shape)


class InitialValues(Mapping[str, Tensor]):
    """The initial values of a model's parameters, by name. Each is computed anew at every access."""

    def __init__(self, writes: dict[str, Write]) -> None:
        self._writes = writes

    def __getitem__(self, name: str) -> Tensor:
        return self._writes[name].value()

    def __iter__(self) -> Iterator[str]:
        return iter(self._writes)

    def __len__(self) -> int:
        return len(self._writes)


def build_on_meta(build: Callable[[], Model]) -> tuple[Model, InitialValues]:
    """The model that `build` makes, on the meta device, and the values that its parameters would have had.

    Afterwards the state of torch's CPU generator is the one in which `build` would have left it.
    """
    recorder = Recorder()
    with torch.device("meta"), recorder:
        model = build()
    named = model.named_parameters(remove_duplicate=False)  # a tied parameter has several names
    return model, InitialValues({name: recorder.last_write[parameter] for name, parameter in named})
