"""Pairs to learn a preference from: a prompt, a completion that was chosen and one that was rejected.

They come from a JSONL file, or are made from a corpus of Python code: chosen is what really stands there, rejected the
same broken in a known way. Whole files are held out for validation. One object a line:

    {"prompt": "def f(a, b):\\n", "chosen": "    return a + b\\n", "rejected": "    return a + b)\\n", "kind": "..."}
"""

import hashlib
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ddp_course.base.atomic_file import replacing
from ddp_course.base.errors import InputError
from ddp_course.base.json_file import parse
from ddp_course.data.breakage import blocks, broken
from ddp_course.data.corpora import FEW_FILES, STDLIB, Corpus, cache_folder, load, make_folder
from ddp_course.data.python_code import is_code
from ddp_course.data.text_files import input_errors
from ddp_course.data.windows import window_starts

TRAIN, VALIDATION = "train.jsonl", "validation.jsonl"
PAIRS_A_FILE = 16  # at most, while there are files enough
HELD_OUT = 20  # of a single JSONL file, the pairs of every 20th prompt validate
LONGEST_LINE = 16 << 20  # bytes
NOTHING: Mapping[str, object] = {}
VERSION = 3  # of what is made from a corpus; another one makes cached pairs stale


@dataclass(frozen=True)
class Pair:
    """`kind` says how the rejected one was made; it may be empty."""

    prompt: str
    chosen: str
    rejected: str
    kind: str = ""


def read_pairs(path: Path) -> list[Pair]:
    """Read a JSONL file. Raises InputError, with the number of the line, for the first that is not a pair."""
    pairs = []
    with input_errors(path), open(path, "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), b""), start=1):
            try:
                pairs.append(_pair(line))
            except ValueError as error:
                raise InputError(f"{path}, line {number}: {error}") from None
    if not pairs:
        raise InputError(f"{path} is empty: expected one JSON object a line, with prompt, chosen and rejected")
    return pairs


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Write a JSONL file, whole or not at all. Raises InputError if that is not possible."""
    try:
        with replacing(path) as file:
            file.writelines(json.dumps(asdict(pair)) + "\n" for pair in pairs)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def make_pairs(documents: Iterable[str], count: int, seed: int, a_file: int = PAIRS_A_FILE) -> Iterator[Pair]:
    """Pairs from Python sources: up to `a_file` of each document, `count` in all."""
    made = 0
    for number, source in enumerate(documents):
        choose = random.Random(f"{seed} {number}")
        for block in blocks(source, a_file, choose):
            damage = broken(block, choose)
            if damage and made < count:
                made += 1
                yield Pair(block.before, block.text, damage[1], damage[0])
        if made == count:
            return


def prepare_pairs(
    data: str,
    train: int,
    validation: int,
    seed: int,
    say: Callable[[str], None] = print,
    before: Mapping[str, object] = NOTHING,
) -> Path:
    """The folder with train.jsonl and validation.jsonl for `data`; call it on one rank, the others read the result.

    data: "stdlib", or a file or folder of Python code: `train` and `validation` pairs are made from it, of different
    files, and cached. Or a file of JSON lines: the pairs of every 20th prompt (by its hash, so that one prompt is never
    on both sides) validate. Or a folder that holds train.jsonl and validation.jsonl already. Which of them a file is
    its content decides, unless it is called .jsonl; one that is neither is an error.
    `before`: the settings of a run that goes on, with the folder it has read as "pairs_folder"; while that is there, it
    is what the run reads again.
    Raises InputError if there are no such pairs.
    """
    asked = {"pairs": data, "train_pairs": train, "validation_pairs": validation, "seed": seed}
    if {name: before.get(name) for name in asked} == asked and (read := before.get("pairs_folder")):
        if _files_of(Path(str(read))) == {TRAIN, VALIDATION}:
            return Path(str(read))
        say(f"the pairs that this run began with are gone from {read}: reading {data} anew")
    given = Path(os.path.expanduser(data))
    there = _files_of(given)
    if there == {TRAIN, VALIDATION}:
        return given
    if there:
        [missing] = {TRAIN, VALIDATION} - there
        raise InputError(f"{given} holds {min(there)} but no {missing}; pairs in a folder need both, or give the file")
    if given.suffix == ".jsonl" or (os.path.isfile(given) and _looks_like_json(given)):
        return _split(given)
    corpus = load(data)
    if data != STDLIB:
        corpus = replace(corpus, files=tuple(file for file in corpus.files if is_code(file.path)))
        if not corpus.files:
            raise InputError(
                f"no pairs can be made from {data}: it holds no Python code; give some, or a file of JSON lines, each "
                f"with prompt, chosen and rejected"
            )
    wanted = f"{VERSION} {corpus.fingerprint} {train} {validation} {seed}"
    folder = cache_folder() / "pairs" / hashlib.sha256(wanted.encode()).hexdigest()[:16]
    if not (folder / VALIDATION).exists():
        say(f"making {train:,} pairs to train on and {validation:,} to validate on from {corpus.name}")
        make_folder(folder)
        pairs = []
        for name, split, count in ((TRAIN, "train", train), (VALIDATION, "val", validation)):
            pairs = _spread(corpus, split, count, seed, without=pairs)
            if not pairs:
                code = "Python code" if name == TRAIN else "Python code that is not trained on"
                raise InputError(f"no pairs can be made from {data}: it holds too little {code} for {name}")
            write_pairs(folder / name, pairs)
    return folder


def fingerprint(folder: Path) -> str:
    """16 hex digits that two folders of pairs share only if they hold the same."""
    digest = hashlib.sha256()
    for name in (TRAIN, VALIDATION):
        digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return digest.hexdigest()[:16]


def pairs_of_update(seed: int, update: int, count: int, total: int) -> list[int]:
    """Which of `total` pairs an update sees: a pure function of (seed, update), whatever the number of processes.

    They are drawn as the windows of pre-training are; a pair is a window without a second place to start at.
    """
    return window_starts(seed, update, count, total, context=0).tolist()


def _files_of(folder: Path) -> set[str]:
    """Which of the two files of pairs lie in a folder."""
    return {name for name in (TRAIN, VALIDATION) if os.path.isfile(folder / name)}


def _looks_like_json(path: Path) -> bool:
    """Whether the first thing in a file is an object or a list of JSON; as Python code it would begin otherwise."""
    with input_errors(path), open(path, "rb") as file:
        return file.read(1 << 16).lstrip()[:1] in (b"{", b"[") and not is_code(path)


def _pair(line: bytes) -> Pair:
    """The pair on a line. Raises ValueError with what is wrong."""
    if len(line) > LONGEST_LINE:
        raise ValueError(f"it has more than {LONGEST_LINE >> 20} MB, expected one pair")
    found = parse(line)
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object with prompt, chosen and rejected, found {type(found).__name__}")
    for name in ("prompt", "chosen", "rejected"):
        if name not in found:
            raise ValueError(f"{name!r} is missing; there is {', '.join(found) or 'nothing'}")
    pair = Pair(**{name: found.get(name, "") for name in ("prompt", "chosen", "rejected", "kind")})
    for name, text in asdict(pair).items():
        if not isinstance(text, str):
            raise ValueError(f"{name!r} should be a text, found {type(text).__name__}")
        if "\0" in text or any(0xD800 <= ord(letter) < 0xE000 for letter in text):
            raise ValueError(f"{name!r} holds a NUL or half a surrogate pair, which no text may hold")
    for name in ("chosen", "rejected"):
        if not getattr(pair, name):
            raise ValueError(f"{name!r} is empty; expected the text of a completion")
    if pair.chosen == pair.rejected:
        raise ValueError("chosen and rejected are the same; there is nothing to prefer")
    return pair


def _spread(corpus: Corpus, split: str, count: int, seed: int, without: Iterable[Pair] = ()) -> list[Pair]:
    """`count` pairs from files all over the corpus, without reading more of them closely than needed.

    None has the code of a pair in `without`: some files of Python's library are alike, line by line.
    """
    files = max(1, len(corpus.text_files) * (1 if split == "train" else 0.05))
    share = 1.5 * count / (PAIRS_A_FILE * files)  # some files give fewer
    if files < FEW_FILES:  # so few that chance could leave out all of them
        share = 1.0
    chosen = (
        text
        for number, text in enumerate(corpus.documents(split))
        if random.Random(f"{seed} {split} {number}").random() < share
    )
    a_file = max(PAIRS_A_FILE, round(1.5 * count / files))
    taken = {(pair.prompt, pair.chosen) for pair in without}
    pairs = list(make_pairs(chosen, 10 * count, seed, a_file))
    drawn = random.Random(seed).sample(pairs, min(count, len(pairs)))
    known = set(drawn)
    spare = [pair for pair in pairs if pair not in known]
    return [pair for pair in drawn + spare if (pair.prompt, pair.chosen) not in taken][:count]


def _split(path: Path) -> Path:
    """The folder of a JSONL file's two parts, in the cache."""
    pairs = read_pairs(path)
    held_out = [int(hashlib.md5(pair.prompt.encode()).hexdigest(), 16) % HELD_OUT == 0 for pair in pairs]
    if all(held_out) or not any(held_out):
        raise InputError(
            f"{path} has too few prompts to hold some out for validation ({len(pairs)} pairs): give a folder with "
            f"{TRAIN} and {VALIDATION}"
        )
    content = "\n".join(json.dumps(asdict(pair)) for pair in pairs)
    folder = make_folder(cache_folder() / "pairs" / hashlib.sha256(content.encode()).hexdigest()[:16])
    write_pairs(folder / TRAIN, [pair for pair, out in zip(pairs, held_out, strict=True) if not out])
    write_pairs(folder / VALIDATION, [pair for pair, out in zip(pairs, held_out, strict=True) if out])
    return folder
