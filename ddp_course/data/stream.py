"""Files of tokens or text as one endless, shuffled stream of batches, divided among ranks and their loader workers.

The global batch is a pure function of (files, seed, position in the stream). The numbers of ranks and of loader
workers only decide which process reads which part of it. The position is one number. A resumed run needs nothing
else, and may have another number of ranks, of workers, or another batch size.
"""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from ddp_course.base.errors import InputError


class TokenStream(IterableDataset):
    """One rank's share of the stream: pairs (inputs, targets), int64, each (global_batch_size / world_size, context).

    files: flat arrays of `dtype`. "<u2" and "<u4" are the course's token files; "u1" is any text, one token per byte.
    global_batch_size: windows per global batch, over all ranks.
    state: the result of `state_after` of an earlier stream; None starts at the beginning.

    A file is cut into windows that share no target: window k starts k * context tokens after window 0. The start of
    window 0 is drawn for each epoch, within the tokens that whole windows leave over, so the tokens that are skipped
    at a file's ends, fewer than `context`, differ from epoch to epoch. A file of `context` tokens or fewer has no
    window. An epoch holds every window once, in a new order, and the next epoch begins in the same batch, so no window
    is left out and all ranks always have a batch.

    Use it as DataLoader(stream, batch_size=None, num_workers=...). With w workers, worker i builds the batches i,
    i + w, i + 2w, ...; the loader asks its workers in turn, which puts them back in order.

    The order sorts raw words of a Philox stream with key (seed, epoch): NumPy keeps those the same in all versions.

    Raises InputError if a file cannot be read or ends within a token, if there is no window, if the
    batch does not divide by world_size, or if `state` is of files with other sizes, another seed, dtype or context.
    """

    def __init__(
        self,
        files: Sequence[Path | str],
        *,
        context: int,
        global_batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        dtype: str = "<u2",
        state: dict | None = None,
    ):
        self.files, self.dtype = [Path(file) for file in files], np.dtype(dtype)
        self.context, self.seed, self.rank = context, seed, rank
        if context < 1:
            raise InputError(f"the context is {context} tokens, expected at least 1")
        if not 0 <= seed < 2**64:
            raise InputError(f"the seed is {seed}, expected a whole number from 0 to 2**64 - 1")
        if not 0 <= rank < world_size:
            raise InputError(f"the rank is {rank} with {world_size} ranks, expected 0 to {world_size - 1}")
        if global_batch_size < 1 or global_batch_size % world_size:
            raise InputError(f"a batch of {global_batch_size} windows cannot be shared equally by {world_size} ranks")
        self.global_batch_size, self.rows = global_batch_size, global_batch_size // world_size
        tokens = np.array([_tokens_in(file, self.dtype) for file in self.files], dtype=np.int64)
        self.room = np.maximum(tokens - 1, 0) % context  # largest start of a file's first window
        self.bounds = np.cumsum(np.maximum(tokens - 1, 0) // context)  # cumulative number of windows per file
        self.windows = int(self.bounds[-1]) if len(self.bounds) else 0
        if not self.windows:
            raise InputError(f"none of the {len(self.files)} files has a window: that takes {context + 1} tokens")
        settings = f"{tokens.tolist()} {self.dtype.str} {context} {seed}"
        self.identity = hashlib.sha256(settings.encode()).hexdigest()[:16]
        self.start = self._position(state)
        self._drawn: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield this rank's batches; in a worker of a DataLoader, the worker's share of them."""
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        mapped = {}  # not an attribute: pickle would send a mapped array to a worker in full
        for batch in itertools.count(first, step):
            yield self._rows(mapped, self.start + batch * self.global_batch_size + self.rank * self.rows)

    def state_after(self, batches: int) -> dict:
        """The state of the stream after `batches` batches of training, for a checkpoint; the same on all ranks.

        The training loop counts the batches, because the loader's workers are some batches ahead of it.
        """
        return {"position": self.start + batches * self.global_batch_size, "identity": self.identity}

    def window(self, position: int) -> tuple[int, int]:
        """(number of the file, its first token) of the window at `position` of the stream, counted from 0."""
        epoch, index = divmod(position, self.windows)
        if epoch not in self._drawn:
            words = np.random.Philox(key=np.array([self.seed, epoch], dtype=np.uint64))
            order = np.argsort(words.random_raw(self.windows), kind="stable")
            first_starts = words.random_raw(len(self.files)) % (self.room + 1).astype(np.uint64)
            self._drawn = {epoch: (order, first_starts)}  # a cache of one epoch
        order, first_starts = self._drawn[epoch]
        number = int(order[index])
        file = int(np.searchsorted(self.bounds, number, side="right"))
        first_of_file = int(self.bounds[file - 1]) if file else 0
        return file, int(first_starts[file]) + (number - first_of_file) * self.context

    def _rows(self, mapped: dict[int, np.memmap], position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Read the windows from `position` on, one per row. A file is mapped when it is first needed."""
        block = np.empty((self.rows, self.context + 1), dtype=np.int64)
        for row in range(self.rows):
            file, first = self.window(position + row)
            if file not in mapped:
                mapped[file] = np.memmap(self.files[file], self.dtype, "r")
            block[row] = mapped[file][first : first + self.context + 1]
        return torch.tensor(block[:, :-1]), torch.tensor(block[:, 1:])

    def _position(self, state: dict | None) -> int:
        if state is None:
            return 0
        if state.get("identity") != self.identity:
            raise InputError(
                f"the saved position belongs to stream {state.get('identity')}, this one is {self.identity}: "
                f"resume with the same files, dtype, context and seed"
            )
        return state["position"]


def _tokens_in(file: Path, dtype: np.dtype) -> int:
    try:
        size = file.stat().st_size
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from error
    if size % dtype.itemsize:
        raise InputError(f"{file} has {size} bytes, expected a multiple of {dtype.itemsize}, the size of {dtype.str}")
    return size // dtype.itemsize
