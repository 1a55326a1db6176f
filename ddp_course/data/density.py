"""Weights of preference pairs by inverse density, so that a prompt that occurs a thousand times does not dominate.

A weight belongs to a prompt, by the md5 of its text, and says how rare prompts like it are: inverse density. Weights
come from a file or are computed here, and are divided by their mean over the training pairs, so that 1 is average.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ddp_course.base.errors import InputError
from ddp_course.base.json_file import read_object

Mode = Literal["none", "mean", "sum"]
KEYWORDS = frozenset(
    "and as assert class def del elif else except for from if import in is lambda not or raise return "
    "try while with yield".split()
)


@dataclass(frozen=True)
class Weights:
    """`values`: one weight per pair, float64, with mean 1. `misses`: how many pairs have no weight; theirs is 1."""

    values: Tensor
    misses: int


def key_of(prompt: str) -> str:
    """The first 16 hex digits of a prompt's md5. With one space more it is another prompt, with another key."""
    return hashlib.md5(prompt.encode(), usedforsecurity=False).hexdigest()[:16]


def shape_of(prompt: str) -> str:
    """The group of a prompt: its last line, in which all names and numbers, and all strings, are written alike."""
    line = prompt.rstrip().rpartition("\n")[2].strip()
    line = re.sub(r"'[^']*'|\"[^\"]*\"", "'", line)
    return re.sub(r"\w+", lambda word: word[0] if word[0] in KEYWORDS else "a", line)


def computed(prompts: Iterable[str]) -> dict[str, float]:
    """Compute weights by key: 1 / the number of prompts with the same shape, so all shapes have equal total weight."""
    shapes = [(key_of(prompt), shape_of(prompt)) for prompt in prompts]
    counts = Counter(shape for _, shape in shapes)
    return {key: 1 / counts[shape] for key, shape in shapes}


def read_weights(path: Path) -> dict[str, float]:
    """Read weights by md5 from a JSON object {md5 of the prompt, at least its first 16 digits: weight}.

    A weight is from 1e-30 to 1e30. Raises InputError, which names the first wrong entry.
    """

    def entries(pairs: list[tuple[str, object]]) -> dict[str, float]:
        weights: dict[str, float] = {}
        for key, weight in pairs:
            if not re.fullmatch(r"[0-9a-f]{16,32}", key):
                raise InputError(f"{path}: {key!r} is not an md5 in 16 to 32 hex digits")
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 1e-30 <= weight <= 1e30:
                shown = repr(weight)[:40]
                raise InputError(f"{path}: the weight of {key} is {shown}, expected a number from 1e-30 to 1e30")
            if weights.setdefault(key[:16], float(weight)) != weight:
                raise InputError(f"{path}: {key[:16]} occurs twice, with weights {weights[key[:16]]} and {weight}")
        return weights

    weights = read_object(path, object_pairs_hook=entries)
    if not weights:
        raise InputError(f"{path}: expected a JSON object with md5 and weight, found an empty one")
    return weights


def look_up(prompts: Sequence[str], weights: Mapping[str, float], most_misses: float) -> Weights:
    """Look up the weight of each prompt and divide by the mean of the known ones. A missing weight becomes 1.

    A default of 1 before the division would be far above real weights of 0.001. Many misses mean that the file was
    written for other prompts, which may differ by a single space. Raises InputError if the share of misses is above
    `most_misses`.
    """
    matches = [weights.get(key_of(prompt)) for prompt in prompts]
    hits = [weight for weight in matches if weight is not None]
    misses = len(matches) - len(hits)
    if misses > most_misses * len(matches) or not hits:
        example = prompts[matches.index(None)][-40:]
        raise InputError(
            f"{misses:,} of {len(matches):,} prompts have no weight, more than --most-misses {most_misses:g} allows; "
            f"the first ends in {example!r}"
        )
    mean = math.fsum(hits) / len(hits)
    values = torch.tensor([1.0 if weight is None else weight / mean for weight in matches], dtype=torch.float64)
    return Weights(values, misses)


def factors(weights: Tensor, mode: Mode, cap: float | None, *, total_weight: float, pairs: int) -> Tensor:
    """The factor of each pair's loss. The loss of the global batch is sum(factor * loss) / `pairs`.

    weights: of this rank's pairs. total_weight, pairs: summed over the global batch, which means over all ranks. The
    gradient then equals that of one process with the global batch. If each rank divided by its own sums, equal weights
    would get other factors on other ranks.

    none: 1. The weights are not used.
    mean: weight * pairs / total_weight. The weighted mean of the global batch: the batch's total weight has no effect.
    sum:  weight. A batch with larger weights takes a larger step, so over many steps each pair counts in proportion
          to its weight; with `mean`, a pair with a large weight counts less in a batch of large weights.
    cap:  the largest factor: no pair counts more than that many average pairs. The part above the cap is not given to
          other pairs.
    """
    if mode == "none":
        uncapped = torch.ones_like(weights)
    elif mode == "mean":
        uncapped = weights * (pairs / total_weight)
    else:
        uncapped = weights
    return uncapped if cap is None else uncapped.clamp(max=cap)
