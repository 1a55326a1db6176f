"""A folder of token files that another program wrote: *train*.bin and *val*.bin, flat files of two- or four-byte ids.

The files of a split are concatenated in the order of their names, so a window may end in the next file. A rank maps
all files into memory and reads only the bytes of its windows.
"""

import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ddp_course.base.errors import InputError
from ddp_course.data import tokenizer
from ddp_course.data.text_files import input_errors

BLOCK_TOKENS = 8_000_000  # that are read at a time


class Shards:
    """Flat files of `dtype` (such as "<u2") as one read-only array of one dimension, with len() and indexing."""

    def __init__(self, files: Sequence[Path | str], dtype: str) -> None:
        self._maps = [np.memmap(file, dtype, "r") for file in files]
        self._ends = np.cumsum([len(array) for array in self._maps])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: np.ndarray | slice | int) -> np.ndarray | np.integer:
        if isinstance(index, slice):
            index = np.arange(*index.indices(len(self)))
        positions = np.asarray(index)
        positions = np.where(positions < 0, positions + len(self), positions)
        files = np.searchsorted(self._ends, positions, side="right")
        tokens = np.empty(positions.shape, self._maps[0].dtype)
        for number in np.unique(files):
            in_file = files == number
            offset = self._ends[number - 1] if number else 0
            tokens[in_file] = self._maps[number][positions[in_file] - offset]
        return tokens if tokens.ndim else tokens[()]


def find_shards(folder: Path) -> dict[str, list[Path]] | None:
    """{"train": files, "val": files} if the folder holds shards of both splits, else None."""
    if not os.path.isdir(folder):  # no exception for a path that the file system refuses
        return None
    files = {split: sorted(folder.glob(f"*{split}*.bin")) for split in ("train", "val")}
    return files if all(files.values()) else None


def shards_fingerprint(shards: dict[str, list[Path]], shard_tokenizer: tokenizer.Tokenizer) -> str:
    """A hash over the shards' names, sizes and modification times and the tokenizer, 16 hex digits.

    Raises InputError if a file cannot be read.
    """
    stats = []
    for file in itertools.chain(*shards.values()):
        with input_errors(file):
            status = file.stat()
        stats.append((str(file), status.st_size, status.st_mtime_ns))
    return hashlib.sha256(json.dumps([stats, shard_tokenizer.fingerprint]).encode()).hexdigest()[:16]


def describe_shards(shards: dict[str, list[Path]], shard_tokenizer: tokenizer.Tokenizer) -> dict:
    """The entries of meta.json for shards: dtype, tokenizer, and files, token count and checksum of each split.

    Reads every file once. Raises InputError if a file cannot be read, is empty, has a size that is no multiple of an
    id's, or holds an id that the tokenizer does not have.
    """
    dtype = np.dtype("<u4" if shard_tokenizer.vocab_size > 65_536 else "<u2")
    splits = {}
    for split, files in shards.items():
        digest, tokens = hashlib.sha256(), 0
        for file in files:
            size = file.stat().st_size
            if size == 0 or size % dtype.itemsize:
                raise InputError(
                    f"{file} has {size} bytes, expected a positive multiple of {dtype.itemsize}: "
                    f"ids of {dtype.itemsize} bytes"
                )
            with input_errors(file):
                ids = np.memmap(file, dtype, "r")
            for first in range(0, len(ids), BLOCK_TOKENS):
                block = ids[first : first + BLOCK_TOKENS]
                if (largest := int(block.max())) >= shard_tokenizer.vocab_size:
                    raise InputError(
                        f"{file} holds the id {largest}, the tokenizer {shard_tokenizer.name} has "
                        f"{shard_tokenizer.vocab_size}: name the tokenizer that made it by --tokenizer"
                    )
                digest.update(block)
            tokens += len(ids)
        splits[split] = {"tokens": tokens, "sha256": digest.hexdigest(), "files": [str(file) for file in files]}
    return {"dtype": dtype.str, "splits": splits, "tokenizer": shard_tokenizer.state()}
