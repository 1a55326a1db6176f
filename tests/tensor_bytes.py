"""Count the bytes of this process's live tensors, now and at the peak, at every operation."""

import weakref

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorBytes(TorchDispatchMode):
    """Counts the bytes of the live tensors that were made inside the `with` block; views count once.

        with TensorBytes() as memory:
            train_step()
        memory.peak, memory.now

    It does not ask the operating system or an allocator, so two runs agree to the byte, on any device. Memory that a
    kernel or a backend uses internally is not counted. Code inside the block is several times slower.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        # A view, or a tensor changed in place, is not new: its storage is an argument's or already known.
        arguments = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(result):
            if storage._cdata not in arguments | self._known:
                self._add(storage)
        self.peak = max(self.peak, self.now)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        """Count `storage` until it is freed: its Python object lives exactly as long as its memory."""
        key, size = storage._cdata, storage.nbytes()
        self._known.add(key)
        self.now += size
        weakref.finalize(storage, self._remove, key, size).atexit = False

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def _storages(values: object) -> list[torch.UntypedStorage]:
    return [value.untyped_storage() for value in tree_leaves(values) if isinstance(value, Tensor)]
