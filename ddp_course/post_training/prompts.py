"""What the model is asked to go on with: the first lines of real functions, and which of them in which update."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ddp_course.data.corpora import Corpus
from ddp_course.data.tokenizer import Tokenizer
from ddp_course.errors import InputError
from ddp_course.post_training.rewards import syntax_tree

HEADER = re.compile(r"^[ \t]*((?:async )?def \w+\(.*\)(?: *-> *[^:\n]+)?:)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Prompts:
    """Prompts to train on, and prompts that are held out: from other files, and none of them among the first."""

    train: list[str]
    held_out: list[str]


def collect(corpus: Corpus, tokenizer: Tokenizer, longest: int, held_out: int) -> Prompts:
    """Every function header of at most `longest` tokens that stands on one line of the corpus, each once, in order.

    A prompt ends with the colon: the line break belongs to the completion, because a byte-pair tokenizer takes it
    together with the indentation that follows. `held_out` headers come from the validation split, spread evenly.
    Raises InputError if a split has none.
    """
    train = _headers(corpus.documents("train"), tokenizer, longest)
    known = set(train)
    others = [header for header in _headers(corpus.documents("val"), tokenizer, longest) if header not in known]
    for kind, found in (("training", train), ("validation", others)):
        if not found:
            raise InputError(
                f"the corpus {corpus.name} has no function of its own among its {kind} text whose header is one line "
                f"of at most {longest} tokens: choose a folder with more Python files"
            )
    step = max(1, len(others) // held_out)
    return Prompts(train, others[::step][:held_out])


def _headers(documents: Iterable[str], tokenizer: Tokenizer, longest: int) -> list[str]:
    found = dict.fromkeys(match[1] for text in documents for match in HEADER.finditer(text))
    return [
        header
        for header in found
        if len(tokenizer.encode(header)) <= longest and syntax_tree(f"{header}\n    pass\n") is not None
    ]


def prompts_of(prompts: list[str], *, seed: int, update: int, count: int) -> list[str]:
    """The prompts of one update, for all ranks together, none of them twice: a pure function of (seed, update).

    They are those with the smallest words of a Philox stream whose key is (seed, update), as in `data.windows`.
    Raises InputError if there are not enough, or if the seed is not in [0, 2**64 - 1].
    """
    if not 0 <= seed < 2**64:
        raise InputError(f"the seed is {seed}, expected a whole number from 0 to 2**64 - 1")
    if count > len(prompts):
        raise InputError(f"an update wants {count} different prompts, the corpus has {len(prompts)}: ask for fewer")
    words = np.random.Philox(key=np.array([seed, update], dtype=np.uint64)).random_raw(len(prompts))
    return [prompts[index] for index in np.argsort(words, kind="stable")[:count]]
