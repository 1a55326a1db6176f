"""A folder of files that hold tokens already, as one long array: train*.bin and val*.bin, ids of two or four bytes.

The files of a split follow one another in the order of their names, as documents do in one file, so a window may end
in the next file. A rank maps all files and reads those bytes that its windows need.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ddp_course.base.errors import InputError
from ddp_course.data import tokenizer

BLOCK = 8_000_000  # tokens that are looked at together


class Shards:
    """Flat files of `dtype` (such as "<u2") as one read-only array of one dimension: len() and indexing."""

    def __init__(self, files: Sequence[Path | str], dtype: str) -> None:
        self._maps = [np.memmap(file, dtype, "r") for file in files]
        self._ends = np.cumsum([len(each) for each in self._maps])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: np.ndarray | slice | int) -> np.ndarray | np.integer:
        if isinstance(index, slice):
            index = np.arange(*index.indices(len(self)))
        wanted = np.asarray(index)
        wanted = np.where(wanted < 0, wanted + len(self), wanted)
        files = np.searchsorted(self._ends, wanted, side="right")
        found = np.empty(wanted.shape, self._maps[0].dtype)
        for number in np.unique(files):
            here = files == number
            before = self._ends[number - 1] if number else 0
            found[here] = self._maps[number][wanted[here] - before]
        return found if found.ndim else found[()]


def find(folder: Path) -> dict[str, list[Path]] | None:
    """{"train": files, "val": files} if the folder holds shards of both splits, else None."""
    if not os.path.isdir(folder):  # False, too, for what no disk takes as a path
        return None
    found = {split: sorted(folder.glob(f"*{split}*.bin")) for split in ("train", "val")}
    return found if all(found.values()) else None


def which(found: dict[str, list[Path]], chosen: tokenizer.Tokenizer) -> str:
    """16 hex digits that change when a shard may have changed: over names, sizes, times and the tokenizer."""
    stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for files in found.values() for file in files]
    return hashlib.sha256(json.dumps([stats, chosen.fingerprint]).encode()).hexdigest()[:16]


def describe(found: dict[str, list[Path]], chosen: tokenizer.Tokenizer) -> dict:
    """What token_file keeps of them: format, files, counts and checksums. Reads every file once.

    Raises InputError if a file holds no whole number of tokens, or an id that the tokenizer does not know.
    """
    dtype = np.dtype("<u4" if chosen.vocab_size > 65_536 else "<u2")
    splits = {}
    for split, files in found.items():
        digest, tokens = hashlib.sha256(), 0
        for file in files:
            size = file.stat().st_size
            if size == 0 or size % dtype.itemsize:
                raise InputError(
                    f"{file} has {size} bytes, expected a positive multiple of {dtype.itemsize}: "
                    f"ids of {dtype.itemsize} bytes"
                )
            ids = np.memmap(file, dtype, "r")
            for first in range(0, len(ids), BLOCK):
                block = ids[first : first + BLOCK]
                if (largest := int(block.max())) >= chosen.vocab_size:
                    raise InputError(
                        f"{file} holds the id {largest}, the tokenizer {chosen.name} has "
                        f"{chosen.vocab_size}: name the one that made it by --tokenizer"
                    )
                digest.update(block)
            tokens += len(ids)
        splits[split] = {"tokens": tokens, "sha256": digest.hexdigest(), "files": [str(file) for file in files]}
    return {"dtype": dtype.str, "splits": splits, "tokenizer": chosen.state()}
