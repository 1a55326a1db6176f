"""How much each pair counts: weights against crowding, so that what occurs a thousand times is not all that is learned.

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
KEPT = frozenset(
    "and as assert class def del elif else except for from if import in is lambda not or raise return "
    "try while with yield".split()
)


@dataclass(frozen=True)
class Weights:
    """`values`: one weight a pair, float64, with mean 1. `misses`: pairs whose prompt had none; theirs is 1."""

    values: Tensor
    misses: int


def key_of(prompt: str) -> str:
    """The first 16 hex digits of a prompt's md5. With one space more it is another prompt, with another key."""
    return hashlib.md5(prompt.encode(), usedforsecurity=False).hexdigest()[:16]


def shape_of(prompt: str) -> str:
    """What prompts of one neighbourhood share: their last line, with all names, numbers and strings made equal."""
    line = prompt.rstrip().rpartition("\n")[2].strip()
    line = re.sub(r"'[^']*'|\"[^\"]*\"", "'", line)
    return re.sub(r"\w+", lambda word: word[0] if word[0] in KEPT else "a", line)


def computed(prompts: Iterable[str]) -> dict[str, float]:
    """Weights by key: 1 / the number of prompts with the same shape.

    So each shape has the same weight in all.
    """
    shapes = [(key_of(prompt), shape_of(prompt)) for prompt in prompts]
    crowd = Counter(shape for _, shape in shapes)
    return {key: 1 / crowd[shape] for key, shape in shapes}


def read_weights(path: Path) -> dict[str, float]:
    """Weights by md5 from a JSON object {md5 of the prompt, at least its first 16 digits: weight above 0}.

    Raises InputError for anything else, naming the entry.
    """

    def entries(pairs: list[tuple[str, object]]) -> dict[str, float]:
        found: dict[str, float] = {}
        for key, weight in pairs:
            if not re.fullmatch(r"[0-9a-f]{16,32}", key):
                raise InputError(f"{path}: {key!r} is not an md5 in 16 to 32 hex digits")
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
                raise InputError(f"{path}: the weight of {key} is {weight!r}, expected a number above 0")
            if found.setdefault(key[:16], float(weight)) != weight:
                raise InputError(f"{path}: {key[:16]} occurs twice, with weights {found[key[:16]]} and {weight}")
        return found

    found = read_object(path, object_pairs_hook=entries)
    if not found:
        raise InputError(f"{path}: expected a JSON object with md5 and weight, found an empty one")
    return found


def look_up(prompts: Sequence[str], weights: Mapping[str, float], most_misses: float) -> Weights:
    """The weight of each prompt, divided by the mean of those that were found; a miss gets that mean, which is 1.

    A default of 1 before the division would drown real weights of 0.001. And if most prompts miss, then the file
    belongs to other prompts, perhaps by a single space: a share above `most_misses` raises InputError.
    """
    found = [weights.get(key_of(prompt)) for prompt in prompts]
    hits = [weight for weight in found if weight is not None]
    misses = len(found) - len(hits)
    if misses > most_misses * len(found) or not hits:
        example = prompts[found.index(None)][-40:]
        raise InputError(
            f"{misses:,} of {len(found):,} prompts have no weight, more than --most-misses {most_misses:g} allows; "
            f"the first ends in {example!r}"
        )
    mean = math.fsum(hits) / len(hits)
    values = torch.tensor([1.0 if weight is None else weight / mean for weight in found], dtype=torch.float64)
    return Weights(values, misses)


def factors(weights: Tensor, mode: Mode, cap: float | None, *, total_weight: float, pairs: int) -> Tensor:
    """What the loss of each of these pairs is multiplied by; the sum of the products over `pairs` is the joint loss.

    weights: of this rank's pairs. total_weight, pairs: sums over the global batch, of all ranks. Then the factors, and
    with them the gradient, are those of one process with the global batch; with sums of its own, each rank would
    give its pairs another importance.

    none: 1. The weights are not used.
    mean: weight * pairs / total_weight. The weighted mean of the global batch: it forgets how heavy the batch is.
    sum:  weight. A batch of heavy pairs takes a larger step, so over many updates each pair of the data counts in
          proportion to its weight; with `mean`, a heavy pair among heavy pairs counts less.
    cap:  the largest factor, after all this: no pair counts more than that many average pairs. What is cut off is
          not handed to others.
    """
    if mode == "none":
        chosen = torch.ones_like(weights)
    elif mode == "mean":
        chosen = weights * (pairs / total_weight)
    else:
        chosen = weights
    return chosen if cap is None else chosen.clamp(max=cap)
