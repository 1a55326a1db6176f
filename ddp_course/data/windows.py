"""Windows of tokens, a pure function of (seed, step, window), for any number of processes.

A window of `context` tokens is an input; the same window shifted by one token is its target. One, two or four
processes divide the same windows of a step, so they train on the same global batch, and a resumed run needs only the
step number to continue.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch

from ddp_course.base.errors import InputError

IGNORED = -100  # the target that torch's cross-entropy leaves out by default


def window_starts(seed: int, step: int, count: int, tokens: int, context: int) -> np.ndarray:
    """The first tokens of windows 0 to count - 1 of a step: int64 (count,), from 0 to tokens - context - 1.

    Window j is word j of a Philox stream whose 128-bit key is (seed, step): it does not depend on `count`,
    and every seed and step has a different stream. (Philox: Salmon et al., "Parallel random numbers: as easy as
    1, 2, 3", 2011.) Raw words are used because NumPy keeps them the same in all versions, which it does not promise for
    `integers`. The modulo makes some starts likelier than others, by a factor of at most 1 + tokens / 2**64.

    Raises InputError if the corpus has no window of this length, or if the seed is not in [0, 2**64 - 1].
    """
    valid = tokens - context  # a window needs one token more than its context, for the last target
    if valid < 1:
        raise InputError(
            f"context {context} needs at least {context + 1} training tokens, the corpus has {tokens}: "
            f"choose a context of at most {max(tokens - 1, 0)}, or a longer corpus"
        )
    if not 0 <= seed < 2**64:
        raise InputError(f"the seed is {seed}, expected a whole number from 0 to 2**64 - 1")
    stream = np.random.Philox(key=np.array([seed, step], dtype=np.uint64))
    return (stream.random_raw(count) % np.uint64(valid)).astype(np.int64)


def micro_batches(
    tokens: np.ndarray,
    *,
    seed: int,
    step: int,
    context: int,
    micro_batch_size: int,
    gradient_accumulation_steps: int,
    rank: int,
    world_size: int,
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield one rank's micro-batches of a step: `gradient_accumulation_steps` pairs (inputs, targets).

    Both are int64 of shape (micro_batch_size, context), on the CPU. Row b of micro-batch m is window
    (m * world_size + rank) * micro_batch_size + b: micro-batch m of all ranks holds consecutive windows.
    """
    count = gradient_accumulation_steps * world_size * micro_batch_size
    starts = window_starts(seed, step, count, len(tokens), context)
    for rank_starts in starts.reshape(gradient_accumulation_steps, world_size, micro_batch_size)[:, rank]:
        block = tokens[rank_starts[:, None] + np.arange(context + 1)].astype(np.int64)
        yield torch.tensor(block[:, :-1]), torch.tensor(block[:, 1:])


def validation_batches(
    tokens: np.ndarray, *, context: int, batch_size: int, rank: int, world_size: int, max_windows: int | None = None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield one rank's batches of a validation split: pairs (inputs, targets), int64, (up to batch_size, context).

    Windows are consecutive and do not overlap, so every token but the first is a target exactly once. The last window
    may be short: its missing targets are -100, and `(targets != -100).sum()` counts the others. Window k goes to rank
    k % world_size. Ranks may get different numbers of batches, or none, so a loop over them must not communicate.
    `max_windows` limits the number of windows, which are spread evenly over the split.

    Raises InputError if there is no target, or if max_windows is below 1.
    """
    if len(tokens) < 2:
        raise InputError(f"validation needs at least 2 tokens, the corpus has {len(tokens)} to validate on")
    if max_windows is not None and max_windows < 1:
        raise InputError(f"validation needs at least 1 window, found max_windows = {max_windows}")
    windows = np.arange(math.ceil((len(tokens) - 1) / context))
    if max_windows is not None and max_windows < len(windows):
        windows = np.arange(max_windows) * len(windows) // max_windows
    rank_windows = windows[rank::world_size]
    for first in range(0, len(rank_windows), batch_size):
        starts = rank_windows[first : first + batch_size] * context
        position = starts[:, None] + np.arange(context + 1)
        block = tokens[np.minimum(position, len(tokens) - 1)].astype(np.int64)
        targets = np.where(position < len(tokens), block, IGNORED)[:, 1:]
        yield torch.tensor(block[:, :-1]), torch.tensor(targets)
