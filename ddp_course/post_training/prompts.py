"""Prompts for GRPO: the headers of real functions, and the choice of prompts for each step."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ddp_course.base.atomic_file import replacing
from ddp_course.base.errors import InputError, write_errors
from ddp_course.base.json_file import read_object
from ddp_course.data.corpora import Corpus, cache_folder, make_folder
from ddp_course.data.pairs import Pair
from ddp_course.data.python_code import syntax_tree
from ddp_course.data.tokenizer import Tokenizer

CODE_LIMIT = 4096  # characters of the code after a header that are used
HEADER = re.compile(r"^[ \t]*((?:async )?def \w+\(.*\)(?: *-> *[^:\n]+)?:)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Prompts:
    """Prompts to train on, and held-out prompts, which come from other files and are not among the training prompts.

    real: the corpus's code after each held-out prompt, whose reward is compared with that of completions.
    """

    train: list[str]
    held_out: list[str]
    real: list[str]


def collect(corpus: Corpus, tokenizer: Tokenizer, longest: int, held_out: int) -> Prompts:
    """Every one-line function header of the corpus of at most `longest` tokens, each once, in order.

    A prompt ends with the colon: the line break belongs to the completion, because a byte-pair tokenizer takes it
    together with the indentation that follows. `held_out` headers come from the validation split, spread evenly.
    Raises InputError if a split has none.
    """
    train = list(_headers(corpus.documents("train"), tokenizer, longest))
    train_set = set(train)
    code_after = _headers(corpus.documents("val"), tokenizer, longest)
    candidates = [header for header in code_after if header not in train_set]
    for kind, headers in (("training", train), ("validation", candidates)):
        if not headers:
            raise InputError(
                f"the corpus {corpus.name} has no function of its own among its {kind} text whose header is one line "
                f"of at most {longest} tokens: choose a folder with more Python files"
            )
    spacing = max(1, len(candidates) // held_out)
    chosen = candidates[::spacing][:held_out]
    return Prompts(train, chosen, [code_after[header] for header in chosen])


def _headers(documents: Iterable[str], tokenizer: Tokenizer, longest: int) -> dict[str, str]:
    """Map each valid header of at most `longest` tokens to the code after its first occurrence."""
    code_after: dict[str, str] = {}
    for text in documents:
        for match in HEADER.finditer(text):
            if match[1] not in code_after:
                code_after[match[1]] = _code_after(text, match)
    return {
        header: code
        for header, code in code_after.items()
        if len(tokenizer.encode(header)) <= longest and syntax_tree(f"{header}\n    pass\n") is not None
    }


def _code_after(text: str, header: re.Match) -> str:
    """The code after a header, to the end of the block that the header is in, or CODE_LIMIT characters.

    It is dedented by the header's own indentation, which a prompt does not have.
    """
    indentation = header[0][: len(header[0]) - len(header[0].lstrip())]
    lines = []
    for line in text[header.end() : header.end() + CODE_LIMIT].splitlines(keepends=True):
        if line.strip() and not line.startswith(indentation):
            break
        lines.append(line.removeprefix(indentation))
    return "".join(lines)


def save_in_cache(prompts: Prompts, pairs: Sequence[Pair]) -> Path:
    """Write a run's prompts and pairs into the cache, from which the run reads them when it resumes; returns the file.

    Raises InputError if the file cannot be written.
    """
    text = json.dumps(asdict(prompts) | {"pairs": [asdict(pair) for pair in pairs]})
    path = make_folder(cache_folder() / "prompts") / f"{_digest(text)}.json"
    with write_errors(path), replacing(path) as file:
        file.write(text)
    return path


def read_saved(path: Path) -> tuple[Prompts, list[Pair]]:
    """Read a file that `save_in_cache` has written. Raises InputError if it is missing or damaged."""
    content = read_object(path)
    if _digest(json.dumps(content)) != path.stem:
        raise InputError(f"{path} is damaged: its content does not match its name")
    prompts = Prompts(content["train"], content["held_out"], content["real"])
    return prompts, [Pair(**pair) for pair in content["pairs"]]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def prompts_of(prompts: list[str], *, seed: int, step: int, count: int) -> list[str]:
    """The `count` prompts of step `step`, over all ranks and without repetition: a pure function of (seed, step).

    Each prompt gets a number from a Philox stream whose key is (seed, step), as in `data.windows`. The prompts with
    the smallest numbers are chosen.
    Raises InputError if there are not enough prompts, or if the seed is not in [0, 2**64 - 1].
    """
    if not 0 <= seed < 2**64:
        raise InputError(f"the seed is {seed}, expected a whole number from 0 to 2**64 - 1")
    if count > len(prompts):
        raise InputError(f"a step wants {count} different prompts, the corpus has {len(prompts)}: ask for fewer")
    numbers = np.random.Philox(key=np.array([seed, step], dtype=np.uint64)).random_raw(len(prompts))
    return [prompts[index] for index in np.argsort(numbers, kind="stable")[:count]]
