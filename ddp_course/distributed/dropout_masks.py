"""Dropout on a mesh: whether an element is kept is a pure function of its position in the global batch.

A generator draws in the order in which a rank computes, so its masks depend on what else the rank has. Here a mask is
hashed from a key of the window (which seed and step give) and from layer, position and unit or head. One process and
the ranks of any mesh then drop the same elements: tp ranks with copies of an activation agree, and ranks with different
windows, tokens or heads draw different masks. Nothing is sent, and a recomputed forward pass needs no saved generator.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


def window_keys(seed: int, step: int, count: int) -> Tensor:
    """A random number for each of the windows 0 to count-1 of a step, whatever `count` is: (count,) of int64."""
    stream = np.random.Philox(np.random.SeedSequence([seed, step]))
    return torch.from_numpy(stream.random_raw(count).view(np.int64))


@dataclass(frozen=True)
class Masks:
    """The dropout masks of a forward pass. At rate 0 nothing is dropped.

    keys: (windows,), from `window_keys`; unused at rate 0. positions: (tokens,), of this rank's tokens in the window.
    """

    rate: float
    keys: Tensor | None
    positions: Tensor

    def drop(self, x: Tensor, site: int) -> Tensor:
        """Drop units of x, (windows, tokens, width). site: a number for each call in a forward pass."""
        if not self.rate:
            return x
        return self._drop(x, site, self.positions[:, None], torch.arange(x.shape[-1], device=x.device))

    def drop_weights(self, weights: Tensor, site: int, heads: Tensor, key_positions: Tensor) -> Tensor:
        """Drop attention weights, (windows, ..., queries, keys). heads: their numbers in the whole layer, (...)."""
        if not self.rate:
            return weights
        return self._drop(weights, site, heads[..., None, None], self.positions[:, None], key_positions)

    def _drop(self, x: Tensor, *coordinates: int | Tensor) -> Tensor:
        state = self.keys.view(-1, *[1] * (x.dim() - 1))
        for coordinate in coordinates:  # those of few dimensions first: only the last one is mixed at full size
            state = _mix(state * _signed(0x9E3779B97F4A7C15) + coordinate)
        is_kept = state >= int(self.rate * 2**64 - 2**63)  # of 2**64 equally likely numbers
        return x * is_kept / (1 - self.rate)


def _mix(x: Tensor) -> Tensor:
    """Change about half of the bits for any change of x (SplitMix64: Steele et al., 2014). int64 wraps around."""
    x = (x ^ (x >> 30 & 2**34 - 1)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> 27 & 2**37 - 1)) * _signed(0x94D049BB133111EB)
    return x ^ (x >> 31 & 2**33 - 1)


def _signed(word: int) -> int:
    """The int64 with the bits of a 64-bit word whose highest bit is set."""
    return word - 2**64
