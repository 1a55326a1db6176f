"""The corpus as numbers on disk: tokenized once, checked on every start, mapped into memory by every rank.

The folder `<cache>/tokens/<corpus>-<tokenizer>-<hash>` holds `train.bin` and `val.bin` (little-endian
unsigned integers, each document followed by end of text) and `meta.json` (counts, checksums, the tokenizer).
"""

import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

from ddp_course.data import corpora, tokenizer
from ddp_course.errors import InputError

FORMAT = 1  # part of the folder's hash: raise it when the way to split, tokenize or write changes
TRAINING_BYTES = 32_000_000  # of text that train a tokenizer; more changes the merges little and takes long
SECONDS_BETWEEN_REPORTS = 10
DAY = 86_400  # seconds
Say = Callable[[str], object]


@dataclass(frozen=True, eq=False)
class Tokens:
    """What a rank trains on. `train` and `val` are 1-d arrays of ids, read only where indexed."""

    folder: Path
    meta: dict
    train: np.memmap
    val: np.memmap

    @cached_property
    def tokenizer(self) -> tokenizer.Tokenizer:
        return tokenizer.from_state(self.meta["tokenizer"])

    @property
    def fingerprint(self) -> str:
        """16 hex digits over the content of both splits and the tokenizer: the same on all ranks."""
        splits = self.meta["splits"]
        return _sha256([splits["train"]["sha256"], splits["val"]["sha256"], self.meta["tokenizer"]])[:16]


def prepare(
    data: str,
    tokenizer_name: str,
    vocab_size: int | None = None,
    cache: Path | None = None,
    say: Say = print,
) -> Path:
    """On one rank: make sure that a corpus's token files exist and are undamaged; return their folder.

    `data` is as in corpora.load, `tokenizer_name` and `vocab_size` as in tokenizer.build. A tokenizer is
    trained on the training split only, and of a corpus above 48 MB on every k-th document, about 32 MB in
    all. Each call streams the checksums; files that do not match are built again. `say` gets a line for what
    takes long, and else nothing. Two processes may build at the same time. Raises InputError as corpora.load
    and tokenizer.build do, and if a split has no text.
    """
    vocab_size = tokenizer.check(tokenizer_name, vocab_size)
    cache = Path(cache) if cache else corpora.cache_folder()
    corpus = corpora.load(data, cache)
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", corpus.name)[:40]
    # Where the text lies is part of the hash: folders can differ though names, sizes and times agree.
    root = os.fsencode(corpus.root).hex()
    key = _sha256([FORMAT, corpus.fingerprint, root, tokenizer_name, vocab_size])[:12]
    folder = corpora.make_folder(cache / "tokens") / f"{name}-{tokenizer_name}-{key}"
    if folder.exists():
        if (damage := _damage(folder)) is None:
            return folder
        say(f"the token files in {folder} are damaged ({damage}): building them again")
    _remove_abandoned(folder.parent)
    building = folder.with_name(f".{folder.name}.building-{uuid.uuid4().hex}")
    try:
        building.mkdir()
        _build(corpus, tokenizer_name, vocab_size, building, say)
        _publish(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def open_tokens(folder: Path) -> Tokens:
    """Map the token files into memory; on every rank, in no time, whatever their size.

    Raises InputError if they are not there: on several machines, each needs `prepare` or a shared cache.
    """
    folder = Path(folder)
    try:
        meta = json.loads((folder / "meta.json").read_text())
        train, val = (
            np.memmap(folder / f"{split}.bin", meta["dtype"], "r", shape=(meta["splits"][split]["tokens"],))
            for split in ("train", "val")
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"no usable token files in {folder} ({error}): prepare them on this machine, "
            f"or set DDP_COURSE_CACHE to a folder that all machines share"
        ) from error
    return Tokens(folder, meta, train, val)


def _build(corpus: corpora.Corpus, name: str, vocab_size: int, folder: Path, say: Say) -> None:
    """Write the three files."""
    size = sum(file.size for file in corpus.text_files)
    say(f"building the token files of {corpus.name} with the tokenizer {name}: {size / 1e6:.1f} MB of text")
    start = time.monotonic()
    every = max(1, round(size / TRAINING_BYTES))
    chosen = tokenizer.build(name, islice(corpus.documents("train"), 0, None, every), vocab_size)
    if name != "bytes":
        say(f"training the tokenizer {name}: {chosen.vocab_size} ids, {time.monotonic() - start:.1f} s")
    start = time.monotonic()
    dtype = np.dtype("<u4" if chosen.vocab_size > 65_535 else "<u2")
    splits = {split: _write(corpus, split, chosen, dtype, folder, say) for split in ("train", "val")}
    total = {key: sum(counts[key] for counts in splits.values()) for key in ("documents", "bytes", "tokens")}
    say(
        f"tokenizing {corpus.name}: {total['documents']} documents, {total['bytes'] / 1e6:.1f} MB -> "
        f"{total['tokens'] / 1e6:.1f} M tokens, {time.monotonic() - start:.1f} s"
    )
    meta = {
        "format": FORMAT,
        "corpus": corpus.name,
        "corpus_fingerprint": corpus.fingerprint,
        "dtype": dtype.str,
        "splits": splits,
        "tokenizer": chosen.state(),
    }
    (folder / "meta.json").write_text(json.dumps(meta | {"sha256": _sha256(meta)}))


def _write(
    corpus: corpora.Corpus,
    split: str,
    chosen: tokenizer.Tokenizer,
    dtype: np.dtype,
    folder: Path,
    say: Say,
) -> dict:
    """Tokenize one split, a document at a time: memory does not grow with the corpus. Returns its counts."""
    digest, counts = hashlib.sha256(), {"documents": 0, "bytes": 0, "tokens": 0}
    reported = time.monotonic()
    with open(folder / f"{split}.bin", "wb") as file:
        for document in corpus.documents(split):
            ids = np.array([*chosen.encode(document), chosen.end_of_text], dtype)
            digest.update(ids)
            file.write(ids)
            counts["documents"] += 1
            counts["bytes"] += len(document.encode("utf-8"))
            counts["tokens"] += len(ids)
            if time.monotonic() - reported > SECONDS_BETWEEN_REPORTS:
                reported = time.monotonic()
                say(f"tokenizing {corpus.name}, {split}: {counts['bytes'] / 1e6:.1f} MB so far")
    if not counts["documents"]:
        kind = "training" if split == "train" else "validation"
        raise InputError(f"the corpus {corpus.name} is too short to have {kind} text: it needs a few lines")
    return counts | {"sha256": digest.hexdigest()}


def _publish(building: Path, folder: Path) -> None:
    """Give a finished folder its name. A damaged one makes way, one that another process finished stays."""
    if folder.exists() and _damage(folder) is not None:
        aside = building.with_name(f"{building.name}-damaged")
        try:
            os.rename(folder, aside)
        except FileNotFoundError:
            pass  # another process has moved it
        shutil.rmtree(aside, ignore_errors=True)
    try:
        os.rename(building, folder)
    except OSError:
        if _damage(folder) is not None:  # not because a good one is there
            raise


def _damage(folder: Path) -> str | None:
    """What is wrong with a folder of token files, or None. Streams the files; memory stays constant."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        expected = meta.pop("sha256")
        if _sha256(meta) != expected:
            return "meta.json does not match its checksum"
        for split, counts in meta["splits"].items():
            with open(folder / f"{split}.bin", "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != counts["sha256"]:
                return f"{split}.bin has checksum {found[:12]}, expected {counts['sha256'][:12]}"
    except OSError as error:
        return str(error)
    except (ValueError, KeyError, AttributeError, TypeError):
        return "meta.json is not readable"
    return None


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _remove_abandoned(tokens: Path) -> None:
    """Delete what builds left behind that were killed: unfinished folders without a change for a day."""
    for unfinished in tokens.glob(".*.building-*"):
        try:
            if time.time() - unfinished.stat().st_mtime > DAY:
                shutil.rmtree(unfinished)
        except FileNotFoundError:
            pass  # another process has finished or removed it
