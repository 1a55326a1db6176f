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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

from ddp_course.base.errors import InputError
from ddp_course.base.json_file import read_object
from ddp_course.data import corpora, shards, tokenizer

FORMAT = 1  # part of the folder's hash: raise it when the way to split, tokenize or write changes
TRAINING_BYTES = 32_000_000  # of text that train a tokenizer; more changes the merges little and takes long
SECONDS_BETWEEN_REPORTS = 10
DAY = 86_400  # seconds
Say = Callable[[str], object]
NOTHING: Mapping[str, object] = {}


@dataclass(frozen=True, eq=False)
class Tokens:
    """What a rank trains on. `train` and `val` are 1-d arrays of ids, read only where indexed."""

    folder: Path
    meta: dict
    train: np.memmap | shards.Shards
    val: np.memmap | shards.Shards

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
    before: Mapping[str, object] = NOTHING,
) -> Path:
    """On one rank: make sure that a corpus's token files exist and are undamaged; return their folder.

    `before`: the settings of a run that goes on, with the folder it has read as "token_file". While that is there and
    undamaged, it is what the run reads again, whatever has become of the corpus meanwhile.
    `data` is as in corpora.load, `tokenizer_name` and `vocab_size` as in tokenizer.build; or `tokenizer_name` is the
    folder of an existing one (tokenizer.existing), whose vocabulary `vocab_size` may not contradict. A tokenizer is
    trained on the training split only, and of a corpus above 48 MB on every k-th document, about 32 MB in
    all. Each call streams the checksums; files that do not match are built again. A folder of tokens (shards.find) is
    taken as it is, with an existing tokenizer or "bytes": read once, and again when a size or time has changed. `say`
    gets a line for what takes long, and else nothing. Two processes may build at the same time. Raises InputError as
    corpora.load, shards.describe and tokenizer.build do, and if a split has no text.
    """
    if tokenizer_name in tokenizer.BUILT:
        vocab_size = tokenizer.check(tokenizer_name, vocab_size)
    asked = {"data": data, "tokenizer": tokenizer_name, "vocab_size": vocab_size}
    known = {name: before.get(name) for name in asked}
    if known | {"vocab_size": known["vocab_size"] or vocab_size} == asked and (read := before.get("token_file")):
        if (damage := _damage(Path(str(read)))) is None:
            return Path(str(read))
        say(f"the token files that this run began with are gone ({damage}): reading {data} anew")
    cache = Path(cache) if cache else corpora.cache_folder()
    which = tokenizer_name
    chosen = None if tokenizer_name in tokenizer.BUILT else _existing(tokenizer_name, vocab_size)
    if found := shards.find(Path(os.path.abspath(os.path.expanduser(data)))):
        try:
            return _prepare_shards(found, chosen or tokenizer_name, cache, say)
        except OSError as error:
            raise _cannot_write(cache / "tokens", error) from error
    if chosen:
        which, tokenizer_name, vocab_size = chosen.fingerprint, chosen.name, chosen.vocab_size
    corpus = corpora.load(data, cache)
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", corpus.name)[:40]
    # Where the text lies is part of the hash: folders can differ though names, sizes and times agree.
    root = os.fsencode(corpus.root).hex()
    key = _sha256([FORMAT, corpus.fingerprint, root, which, vocab_size])[:12]
    folder = corpora.make_folder(cache / "tokens") / f"{name}-{tokenizer_name}-{key}"
    if folder.exists():
        if (damage := _damage(folder)) is None:
            return folder
        say(f"the token files in {folder} are damaged ({damage}): building them again")
    _remove_abandoned(folder.parent)
    building = folder.with_name(f".{folder.name}.building-{uuid.uuid4().hex}")
    try:
        building.mkdir()
        _build(corpus, tokenizer_name, vocab_size, building, say, chosen)
        _publish(building, folder)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def _cannot_write(folder: Path, error: OSError) -> InputError:
    """What is left once reading has told its own errors: a full disk, most of all."""
    return InputError(
        f"cannot write the token files {folder} ({error.strerror or error}): set DDP_COURSE_CACHE to another folder"
    )


def _existing(folder: str, vocab_size: int | None) -> tokenizer.Tokenizer:
    chosen = tokenizer.existing(folder)
    if vocab_size not in (None, chosen.vocab_size):
        raise InputError(
            f"the tokenizer {folder} has {chosen.vocab_size} tokens, not {vocab_size}: give --vocab-size None"
        )
    return chosen


def _prepare_shards(found: dict[str, list[Path]], chosen: tokenizer.Tokenizer | str, cache: Path, say: Say) -> Path:
    """A folder with nothing but meta.json, which says where the shards are and what is in them."""
    data = found["train"][0].parent
    if chosen == "bytes":
        chosen = tokenizer.build("bytes", [])
    if isinstance(chosen, str):
        raise InputError(
            f"{data} holds tokens, not text: give the folder of the tokenizer that made them as --tokenizer"
        )
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", data.name)[:40]
    folder = corpora.make_folder(cache / "tokens") / f"{name}-shards-{shards.which(found, chosen)}"
    if not (folder / "meta.json").exists():
        say(f"reading the shards in {data}: {sum(map(len, found.values()))} files")
        meta = {"format": FORMAT, "corpus": data.name} | shards.describe(found, chosen)
        folder.mkdir(exist_ok=True)
        unfinished = folder / f".meta.{uuid.uuid4().hex}"
        unfinished.write_text(json.dumps(meta | {"sha256": _sha256(meta)}))
        os.replace(unfinished, folder / "meta.json")
    return folder


def open_tokens(folder: Path) -> Tokens:
    """Map the token files into memory; on every rank, in no time, whatever their size.

    Raises InputError if they are not there: on several machines, each needs `prepare` or a shared cache.
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
    about = meta["splits"][split]
    if "files" in about:
        return shards.Shards(about["files"], meta["dtype"])
    return np.memmap(folder / f"{split}.bin", meta["dtype"], "r", shape=(about["tokens"],))


def _build(
    corpus: corpora.Corpus, name: str, vocab_size: int, folder: Path, say: Say, chosen: tokenizer.Tokenizer | None
) -> None:
    """Write the three files, with the tokenizer `chosen`, or with one that is trained first."""
    size = sum(file.size for file in corpus.text_files)
    say(f"building the token files of {corpus.name} with the tokenizer {name}: {size / 1e6:.1f} MB of text")
    start = time.monotonic()
    every = max(1, round(size / TRAINING_BYTES))
    if trained := chosen is None:
        chosen = tokenizer.build(name, islice(corpus.documents("train"), 0, None, every), vocab_size)
    if trained and name != "bytes":
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
    corpus: corpora.Corpus, split: str, chosen: tokenizer.Tokenizer, dtype: np.dtype, folder: Path, say: Say
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
        meta = read_object(folder / "meta.json")
        expected = meta.pop("sha256")
        if _sha256(meta) != expected:
            return "meta.json does not match its checksum"
        for split, counts in meta["splits"].items():
            digest = hashlib.sha256()
            for name in counts.get("files", [folder / f"{split}.bin"]):
                with open(name, "rb") as file:
                    hashlib.file_digest(file, lambda digest=digest: digest)
            found = digest.hexdigest()
            if found != counts["sha256"]:
                return f"{split}.bin has checksum {found[:12]}, expected {counts['sha256'][:12]}"
    except (OSError, InputError) as error:
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
