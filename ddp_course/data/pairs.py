"""Preference pairs (a prompt, a chosen and a rejected completion), and prompts with one answer each.

They come from a JSONL file, or are made from a corpus of Python code: chosen is the original code, rejected the same
code broken in a known way. Whole files are held out for validation. The format is one object per line:

    {"prompt": "def f(a, b):\\n", "chosen": "    return a + b\\n", "rejected": "    return a + b)\\n", "kind": "..."}
"""

import hashlib
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from ddp_course.base.atomic_file import replacing
from ddp_course.base.errors import InputError, write_errors
from ddp_course.base.json_file import parse
from ddp_course.data.breakage import blocks, break_block
from ddp_course.data.corpora import FEW_FILES, STDLIB, Corpus, cache_folder, load, make_folder
from ddp_course.data.python_code import is_code
from ddp_course.data.text_files import input_errors
from ddp_course.data.windows import window_starts

TRAIN, VALIDATION = "train.jsonl", "validation.jsonl"
PAIRS_PER_FILE = 16  # at most, in a corpus with enough files
HELD_OUT = 20  # every 20th prompt of a single JSONL file is held out for validation
MAX_LINE_BYTES = 16 << 20
VERSION = 4  # of the pairs made from a corpus: raising it makes cached pairs stale


@dataclass(frozen=True)
class Pair:
    """A preference pair.

    `kind` names the breakage that made the rejected completion. `source` identifies the document that the pair comes
    from, because pairs of one document are alike. Either may be empty.
    """

    prompt: str
    chosen: str
    rejected: str
    kind: str = ""
    source: str = ""


@dataclass(frozen=True)
class Answer:
    """A prompt and its answer, for supervised fine-tuning."""

    prompt: str
    answer: str


Record = TypeVar("Record", Pair, Answer)


def read_pairs(path: Path, record_type: type[Record] = Pair) -> list[Record]:
    """Read a JSONL file. Raises InputError, with the line number, for the first line that is not of `record_type`."""
    pairs = []
    with input_errors(path), open(path, "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            try:
                pairs.append(_parse_line(line, record_type))
            except ValueError as error:
                raise InputError(f"{path}, line {number}: {error}") from None
    if not pairs:
        raise InputError(f"{path} is empty: expected one JSON object per line, with {_listed(_required(record_type))}")
    return pairs


def write_pairs(path: Path, pairs: Iterable[Pair | Answer]) -> None:
    """Write a JSONL file, whole or not at all. Raises InputError if that is not possible."""
    with write_errors(path), replacing(path) as file:
        file.writelines(json.dumps(asdict(pair)) + "\n" for pair in pairs)


def make_pairs(documents: Iterable[str], count: int, seed: int, per_file: int) -> Iterator[Pair]:
    """Make pairs from Python sources: at most `per_file` of each document and `count` in all."""
    made = 0
    for number, source in enumerate(documents):
        rng = random.Random(f"{seed} {number}")
        for block in blocks(source, per_file, rng):
            broken = break_block(block, rng)
            if broken and made < count:
                made += 1
                breakage, text = broken
                yield Pair(block.preceding, block.text, text, breakage, f"document {number}")
        if made == count:
            return


def prepare_pairs(
    data: str,
    train: int,
    validation: int,
    seed: int,
    say: Callable[[str], None] = print,
    resumed_settings: Mapping[str, object] = MappingProxyType({}),
) -> Path:
    """Make or find train.jsonl and validation.jsonl for `data`, and return their folder. Call it on one rank.

    data: "stdlib", or a file or folder of Python code: `train` and `validation` pairs are made from different files of
    it, and cached. Or a JSONL file: every 20th prompt (by its hash, so that no prompt is in both splits) is held out
    for validation. Or a folder that already holds train.jsonl and validation.jsonl. A file's content decides whether
    it is code or JSONL, unless its name ends in .jsonl.
    resumed_settings: the settings of the run that is resumed; if its "pairs_folder" still exists, it is used again.
    Raises InputError if there are no such pairs.
    """
    requested = {"pairs": data, "train_pairs": train, "validation_pairs": validation, "seed": seed}
    if requested.items() <= resumed_settings.items() and "pairs_folder" in resumed_settings:
        resumed_folder = Path(str(resumed_settings["pairs_folder"]))
        if _files_of(resumed_folder) == {TRAIN, VALIDATION}:
            return resumed_folder
        say(f"the pairs that this run began with are gone from {resumed_folder}: reading {data} anew")
    if folder := find_pairs(data):
        return folder
    corpus = load(data)
    if data != STDLIB:
        corpus = replace(corpus, files=tuple(file for file in corpus.files if is_code(file.path)))
        if not corpus.files:
            raise InputError(
                f"no pairs can be made from {data}: it holds no Python code; give some, or a file of JSON lines, each "
                f"with prompt, chosen and rejected"
            )
    identity = f"{VERSION} {corpus.fingerprint} {train} {validation} {seed}"
    folder = cache_folder() / "pairs" / hashlib.sha256(identity.encode()).hexdigest()[:16]
    if not (folder / VALIDATION).exists():
        say(f"making {train:,} pairs to train on and {validation:,} to validate on from {corpus.name}")
        make_folder(folder)
        pairs = []
        for name, split, count in ((TRAIN, "train", train), (VALIDATION, "val", validation)):
            pairs = _pairs_of_split(corpus, split, count, seed, excluded=pairs)
            if not pairs:
                code = "Python code" if name == TRAIN else "Python code that is not trained on"
                raise InputError(f"no pairs can be made from {data}: it holds too little {code} for {name}")
            write_pairs(folder / name, pairs)
    return folder


def find_pairs(data: str, record_type: type[Record] = Pair) -> Path | None:
    """The folder of train.jsonl and validation.jsonl for a folder or a JSONL file, as in `prepare_pairs`.

    None if `data` is neither. Raises InputError if one of the two files is missing.
    """
    source = Path(os.path.expanduser(data))
    present = _files_of(source)
    if present == {TRAIN, VALIDATION}:
        return source
    if present:
        [missing] = {TRAIN, VALIDATION} - present
        raise InputError(
            f"{source} holds {min(present)} but no {missing}; pairs in a folder need both, or give the file"
        )
    if source.suffix == ".jsonl" or (os.path.isfile(source) and _looks_like_json(source)):
        return _split_file(source, record_type)
    return None


def fingerprint(folder: Path) -> str:
    """A hash over the two files of a folder, 16 hex digits."""
    digest = hashlib.sha256()
    for name in (TRAIN, VALIDATION):
        digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return digest.hexdigest()[:16]


def pairs_of_step(seed: int, step: int, count: int, total: int) -> list[int]:
    """The indices of `count` of `total` pairs for a step, drawn with replacement: a pure function of (seed, step).

    They are drawn like the windows of pre-training, with a context of 0 tokens, at any number of processes.
    """
    return window_starts(seed, step, count, total, context=0).tolist()


def _files_of(folder: Path) -> set[str]:
    """Which of TRAIN and VALIDATION exist in a folder."""
    return {name for name in (TRAIN, VALIDATION) if os.path.isfile(folder / name)}


def _looks_like_json(path: Path) -> bool:
    """Whether a file begins like an object or a list of JSON and is not Python code."""
    with input_errors(path), open(path, "rb") as file:
        return file.read(1 << 16).lstrip()[:1] in (b"{", b"[") and not is_code(path)


def _required(record_type: type) -> list[str]:
    """The names of the fields without a default."""
    return [field.name for field in fields(record_type) if field.default is MISSING]


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _parse_line(line: bytes, record_type: type[Record]) -> Record:
    """Parse one line of a JSONL file. Raises ValueError that says what is wrong."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"it has more than {MAX_LINE_BYTES >> 20} MB, expected one pair")
    record, required = parse(line), _required(record_type)
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object with {_listed(required)}, found {type(record).__name__}")
    for name in required:
        if name not in record:
            raise ValueError(f"{name!r} is missing; there is {', '.join(record) or 'nothing'}")
    pair = record_type(**{field.name: record.get(field.name, "") for field in fields(record_type)})
    for name, text in asdict(pair).items():
        if not isinstance(text, str):
            raise ValueError(f"{name!r} should be a text, found {type(text).__name__}")
        if "\0" in text or any(0xD800 <= ord(letter) < 0xE000 for letter in text):
            raise ValueError(f"{name!r} holds a NUL or half a surrogate pair, which no text may hold")
    for name in required[1:]:
        if not getattr(pair, name):
            raise ValueError(f"{name!r} is empty; expected the text of a completion")
    if isinstance(pair, Pair) and pair.chosen == pair.rejected:
        raise ValueError("chosen and rejected are the same; there is nothing to prefer")
    return pair


def _pairs_of_split(corpus: Corpus, split: str, count: int, seed: int, excluded: Iterable[Pair]) -> list[Pair]:
    """Make `count` pairs from random documents of a split, without parsing many more documents than needed.

    Pairs with the code of a pair in `excluded` are left out, because some files of Python's library share lines.
    """
    files = max(1, len(corpus.text_files) * (1 if split == "train" else 0.05))
    # 1.5: some files give fewer pairs. A random choice among few files could leave out all of them.
    share = 1.5 * count / (PAIRS_PER_FILE * files) if files >= FEW_FILES else 1.0
    documents = (
        text
        for number, text in enumerate(corpus.documents(split))
        if random.Random(f"{seed} {split} {number}").random() < share
    )
    per_file = max(PAIRS_PER_FILE, round(1.5 * count / files))
    excluded_code = {(pair.prompt, pair.chosen) for pair in excluded}
    pairs = list(make_pairs(documents, 10 * count, seed, per_file))
    drawn = random.Random(seed).sample(pairs, min(count, len(pairs)))
    known = set(drawn)
    spare = [pair for pair in pairs if pair not in known]
    return [pair for pair in drawn + spare if (pair.prompt, pair.chosen) not in excluded_code][:count]


def _split_file(path: Path, record_type: type[Record]) -> Path:
    """Split a JSONL file into training and validation pairs; returns their folder, in the cache."""
    pairs = read_pairs(path, record_type)
    splits: dict[str, list[Record]] = {TRAIN: [], VALIDATION: []}
    for pair in pairs:
        held_out = int(hashlib.md5(pair.prompt.encode()).hexdigest(), 16) % HELD_OUT == 0
        splits[VALIDATION if held_out else TRAIN].append(pair)
    if not all(splits.values()):
        raise InputError(
            f"{path} has too few prompts to hold some out for validation ({len(pairs)} pairs): give a folder with "
            f"{TRAIN} and {VALIDATION}"
        )
    content = "\n".join(json.dumps(asdict(pair)) for pair in pairs)
    folder = make_folder(cache_folder() / "pairs" / hashlib.sha256(content.encode()).hexdigest()[:16])
    for name, split in splits.items():
        write_pairs(folder / name, split)
    return folder
