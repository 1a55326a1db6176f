"""Token files: a corpus tokenized once, checked on every start, mapped into memory by every rank.

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import numpy as np

from ddp_course.base.atomic_file import replacing
from ddp_course.base.errors import InputError
from ddp_course.base.json_file import read_object
from ddp_course.data import corpora, shards, tokenizer
from ddp_course.data.text_files import BLOCK

FORMAT = 1  # part of the folder's hash: raise it when the way to split, tokenize or write changes
TRAINING_BYTES = 32_000_000  # of text to train a tokenizer on: more takes longer and changes few merges
SECONDS_BETWEEN_REPORTS = 10
DAY = 86_400  # seconds
Say = Callable[[str], object]


@dataclass(frozen=True, eq=False)
class Tokens:
    """The token files of a corpus. `train` and `val` are 1-d arrays of ids, read only where indexed."""

    folder: Path
    meta: dict
    train: np.memmap | shards.Shards
    val: np.memmap | shards.Shards

    @cached_property
    def tokenizer(self) -> tokenizer.Tokenizer:
        return tokenizer.from_state(self.meta["tokenizer"])

    @property
    def fingerprint(self) -> str:
        """A hash over the content of both splits and the tokenizer, 16 hex digits."""
        splits = self.meta["splits"]
        return _sha256([splits["train"]["sha256"], splits["val"]["sha256"], self.meta["tokenizer"]])[:16]


def prepare(
    data: str,
    tokenizer_name: str,
    vocab_size: int | None = None,
    say: Say = print,
    resumed_settings: Mapping[str, object] = MappingProxyType({}),
) -> Path:
    """Make sure that a corpus's token files exist and are undamaged, and return their folder. Call it on one rank.

    data: as in corpora.load. Or a folder of tokens (shards.find_shards), which is used as it is, with an existing
    tokenizer or "bytes", and read again only when a size or time has changed.
    tokenizer_name, vocab_size: as in tokenizer.build. Or the folder of an existing tokenizer (tokenizer.existing), and
    its size or None. A tokenizer is trained on the training split only, and for a corpus above 48 MB on every k-th
    document, about 32 MB in all.
    say: gets a line before each slow part.
    resumed_settings: the settings of the run that is resumed; if its "token_file" is still there and undamaged, it is
    used again, whether or not the corpus has changed.
    Each call verifies the checksums; files that do not match are built again. Two processes may build at the same time.
    Raises InputError as corpora.load, shards.describe_shards and tokenizer.build do, and if a split has no text.
    """
    if tokenizer_name in tokenizer.BUILT:
        vocab_size = tokenizer.check(tokenizer_name, vocab_size)
    requested = {"data": data, "tokenizer": tokenizer_name, "vocab_size": vocab_size}
    if resumed_folder := _resumed_folder(requested, resumed_settings, say):
        return resumed_folder
    tokens_folder = corpora.cache_folder() / "tokens"
    existing_tokenizer = None if tokenizer_name in tokenizer.BUILT else _existing_tokenizer(tokenizer_name, vocab_size)
    if shard_files := shards.find_shards(Path(os.path.abspath(os.path.expanduser(data)))):
        shard_tokenizer = tokenizer.build("bytes", []) if tokenizer_name == "bytes" else existing_tokenizer
        with _write_errors(tokens_folder):
            return _prepare_shards(shard_files, shard_tokenizer, tokens_folder, say)
    if existing_tokenizer:
        tokenizer_name, vocab_size = existing_tokenizer.name, existing_tokenizer.vocab_size
    tokenizer_identity = existing_tokenizer.fingerprint if existing_tokenizer else tokenizer_name
    corpus = corpora.load(data)
    # The path is part of the hash: two folders can differ although names, sizes and times agree.
    root = os.fsencode(corpus.root).hex()
    key = _sha256([FORMAT, corpus.fingerprint, root, tokenizer_identity, vocab_size])[:12]
    folder = corpora.make_folder(tokens_folder) / f"{_short_name(corpus.name)}-{tokenizer_name}-{key}"
    if folder.exists():
        if (damage := _damage(folder)) is None:
            return folder
        say(f"the token files in {folder} are damaged ({damage}): building them again")
    _remove_abandoned(folder.parent)
    building = folder.with_name(f".{folder.name}.building-{uuid.uuid4().hex}")
    try:
        with _write_errors(folder):
            building.mkdir()
            _build(corpus, tokenizer_name, vocab_size, building, say, existing_tokenizer)
            _publish(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def _resumed_folder(requested: dict, resumed_settings: Mapping[str, object], say: Say) -> Path | None:
    """The token files of the resumed run, if they are undamaged and of the requested corpus and tokenizer."""
    resumed = {name: resumed_settings.get(name) for name in requested}
    resumed["vocab_size"] = resumed["vocab_size"] or requested["vocab_size"]  # None: the tokenizer's default
    if resumed != requested or "token_file" not in resumed_settings:
        return None
    folder = Path(str(resumed_settings["token_file"]))
    damage = _damage(folder)
    if damage:
        say(f"the token files that this run began with are gone ({damage}): reading {requested['data']} anew")
    return None if damage else folder


@contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    """Turn a failed write, such as to a full disk, into an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write the token files {folder} ({error.strerror or error}): set DDP_COURSE_CACHE to another folder"
        ) from error


def _existing_tokenizer(folder: str, vocab_size: int | None) -> tokenizer.Tokenizer:
    """The tokenizer in a folder. Raises InputError if `vocab_size` is neither None nor its size."""
    existing = tokenizer.existing(folder)
    if vocab_size not in (None, existing.vocab_size):
        raise InputError(
            f"the tokenizer {folder} has {existing.vocab_size} tokens, not {vocab_size}: give --vocab-size None"
        )
    return existing


def _prepare_shards(
    shard_files: dict[str, list[Path]], shard_tokenizer: tokenizer.Tokenizer | None, tokens_folder: Path, say: Say
) -> Path:
    """Make a folder that holds only meta.json, with the paths, counts and checksums of the shards; returns it."""
    data = shard_files["train"][0].parent
    if shard_tokenizer is None:
        raise InputError(
            f"{data} holds tokens, not text: give the folder of the tokenizer that made them as --tokenizer"
        )
    key = shards.shards_fingerprint(shard_files, shard_tokenizer)
    folder = corpora.make_folder(tokens_folder) / f"{_short_name(data.name)}-shards-{key}"
    if not (folder / "meta.json").exists():
        say(f"reading the shards in {data}: {sum(map(len, shard_files.values()))} files")
        meta = {"format": FORMAT, "corpus": data.name} | shards.describe_shards(shard_files, shard_tokenizer)
        folder.mkdir(exist_ok=True)
        with replacing(folder / "meta.json") as file:
            json.dump(meta | {"sha256": _sha256(meta)}, file)
    return folder


def open_tokens(folder: Path) -> Tokens:
    """Map the token files into memory, on every rank. This is fast for files of any size.

    Raises InputError if they are missing: on several machines, each needs `prepare` or a shared cache.
    """
    folder = Path(folder)
    try:
        meta = read_object(folder / "meta.json")
        train, val = (_mapped(folder, split, meta) for split in ("train", "val"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InputError) as error:
        raise InputError(
            f"no usable token files in {folder} ({error}): prepare them on this machine, "
            f"or set DDP_COURSE_CACHE to a folder that all machines share"
        ) from error
    return Tokens(folder, meta, train, val)


def _mapped(folder: Path, split: str, meta: dict) -> np.memmap | shards.Shards:
    split_meta = meta["splits"][split]
    if "files" in split_meta:
        return shards.Shards(split_meta["files"], meta["dtype"])
    return np.memmap(folder / f"{split}.bin", meta["dtype"], "r", shape=(split_meta["tokens"],))


def _build(
    corpus: corpora.Corpus,
    name: str,
    vocab_size: int,
    folder: Path,
    say: Say,
    existing_tokenizer: tokenizer.Tokenizer | None,
) -> None:
    """Write train.bin, val.bin and meta.json, with the existing tokenizer or else with a newly trained one."""
    size = sum(file.size for file in corpus.text_files)
    say(f"building the token files of {corpus.name} with the tokenizer {name}: {size / 1e6:.1f} MB of text")
    start = time.monotonic()
    text_tokenizer = existing_tokenizer
    if text_tokenizer is None:
        # Each merge needs at least one byte of text, and the library allocates memory for `vocab_size` of them.
        vocab_size = min(vocab_size, tokenizer.SMALLEST_VOCAB_SIZE + min(size, 2 * TRAINING_BYTES))
        stride = max(1, round(size / TRAINING_BYTES))
        text_tokenizer = tokenizer.build(name, islice(corpus.documents("train"), 0, None, stride), vocab_size)
        if name != "bytes":
            say(f"training the tokenizer {name}: {text_tokenizer.vocab_size} ids, {time.monotonic() - start:.1f} s")
    start = time.monotonic()
    dtype = np.dtype("<u4" if text_tokenizer.vocab_size > 65_535 else "<u2")
    splits = {split: _write(corpus, split, text_tokenizer, dtype, folder, say) for split in ("train", "val")}
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
        "tokenizer": text_tokenizer.state(),
    }
    (folder / "meta.json").write_text(json.dumps(meta | {"sha256": _sha256(meta)}))


def _write(
    corpus: corpora.Corpus, split: str, text_tokenizer: tokenizer.Tokenizer, dtype: np.dtype, folder: Path, say: Say
) -> dict:
    """Tokenize one split, a document at a time: memory does not grow with the corpus. Returns its counts."""
    digest, counts = hashlib.sha256(), {"documents": 0, "bytes": 0, "tokens": 0}
    reported = time.monotonic()
    with open(folder / f"{split}.bin", "wb") as file:
        for document in corpus.documents(split):
            ids = np.array([*text_tokenizer.encode(document), text_tokenizer.end_of_text], dtype)
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
    """Give a finished folder its final name: it replaces a damaged folder, but not an undamaged one."""
    if folder.exists() and _damage(folder) is not None:
        damaged = building.with_name(f"{building.name}-damaged")
        try:
            os.rename(folder, damaged)
        except FileNotFoundError:
            pass  # another process has moved it
        shutil.rmtree(damaged, ignore_errors=True)
    try:
        os.rename(building, folder)
    except OSError:
        if _damage(folder) is not None:  # the rename did not fail because another process had finished first
            raise


def _damage(folder: Path) -> str | None:
    """Check a folder of token files: the damage in words, or None. Streams the files; memory stays constant."""
    try:
        meta = read_object(folder / "meta.json")
        expected = meta.pop("sha256")
        if _sha256(meta) != expected:
            return "meta.json does not match its checksum"
        for split, counts in meta["splits"].items():
            digest = hashlib.sha256()
            for name in counts.get("files", [folder / f"{split}.bin"]):
                with open(name, "rb") as file:
                    while block := file.read(BLOCK):
                        digest.update(block)
            actual = digest.hexdigest()
            if actual != counts["sha256"]:
                return f"{split}.bin has checksum {actual[:12]}, expected {counts['sha256'][:12]}"
    except (OSError, InputError) as error:
        return str(error)
    except (ValueError, KeyError, AttributeError, TypeError):
        return "meta.json is not readable"
    return None


def _short_name(name: str) -> str:
    """The part of a folder's name that stands for a corpus."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:40]


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _remove_abandoned(tokens: Path) -> None:
    """Delete unfinished folders of killed builds: those without a change for a day."""
    for unfinished in tokens.glob(".*.building-*"):
        try:
            # A folder has the time at which its last file was begun; a long build writes to one file for days.
            changed = max(path.stat().st_mtime for path in (unfinished, *unfinished.iterdir()))
            if time.time() - changed > DAY:
                shutil.rmtree(unfinished)
        except FileNotFoundError:
            pass  # another process has finished or removed it
