"""Break real Python code in known ways, for pairs in which the original is preferred to the broken version.

A breakage makes one change in a few lines: an operator, a bracket, a name... Python's own tokenizer finds what to
change, so nothing is changed inside a comment or a string, where it would not be an error.
"""

import io
import keyword
import random
import re
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass

MAX_LINES = 3  # of a block
PRECEDING_LINES = 8
KINDS = {tokenize.NAME: "name", tokenize.OP: "operator", tokenize.STRING: "string"}  # of words
REPLACEMENTS = {
    "==": "!=",
    "!=": "==",
    "<": ">",
    ">": "<",
    "<=": ">=",
    ">=": "<=",
    "+": "-",
    "-": "+",
    "*": "/",
    "/": "*",
    "+=": "-=",
    "-=": "+=",
    "=": "==",
    "and": "or",
    "or": "and",
    "True": "False",
    "False": "True",
    "is": "in",
}


@dataclass(frozen=True)
class Word:
    """A token of Python in a block of lines: `text` is block.text[start:stop]."""

    kind: str  # "name", "keyword", "operator" or "string"
    text: str
    start: int
    stop: int


@dataclass(frozen=True)
class Block:
    """Whole lines of a file (`text`), the words in them, and the lines that precede them."""

    preceding: str
    text: str
    words: tuple[Word, ...]


def operator_swapped(block: Block, rng: random.Random) -> str | None:
    """== becomes !=, + becomes -, `and` becomes `or`, and so on."""
    word = _choose([word for word in block.words if word.text in REPLACEMENTS and word.kind != "string"], rng)
    return word and _replace(block, word, REPLACEMENTS[word.text])


def bracket_dropped(block: Block, rng: random.Random) -> str | None:
    """One of ( ) [ ] { } is missing."""
    word = _choose([word for word in block.words if word.text in tuple("()[]{}")], rng)
    return word and _replace(block, word, "")


def comma_dropped(block: Block, rng: random.Random) -> str | None:
    """A comma is missing."""
    word = _choose([word for word in block.words if word.text == ","], rng)
    return word and _replace(block, word, "")


def colon_dropped(block: Block, rng: random.Random) -> str | None:
    """The colon at the end of a line is missing."""
    ends = [word for word in block.words if word.text == ":" and block.text[word.stop : word.stop + 1] == "\n"]
    word = _choose(ends, rng)
    return word and _replace(block, word, "")


def quote_dropped(block: Block, rng: random.Random) -> str | None:
    """A string does not end."""
    word = _choose([word for word in block.words if word.kind == "string"], rng)
    return word and _replace(block, word, word.text[:-1])


def name_replaced(block: Block, rng: random.Random) -> str | None:
    """A name is replaced by another name from the same or the preceding lines."""
    word = _choose([word for word in block.words if word.kind == "name"], rng)
    if not word:
        return None
    nearby = sorted(_names(block.preceding + block.text) - {word.text})
    return _replace(block, word, rng.choice(nearby)) if nearby else None


def letters_swapped(block: Block, rng: random.Random) -> str | None:
    """Two neighbouring letters of a name or keyword are swapped."""
    words = [word for word in block.words if word.kind in ("name", "keyword")]
    positions = [(word, n) for word in words for n in range(len(word.text) - 1) if word.text[n] != word.text[n + 1]]
    if not positions:
        return None
    word, n = rng.choice(positions)
    return _replace(block, word, word.text[:n] + word.text[n + 1] + word.text[n] + word.text[n + 2 :])


def indentation_lost(block: Block, rng: random.Random) -> str | None:
    """A line begins up to four spaces too far to the left."""
    lines = block.text.splitlines(keepends=True)
    indented = [n for n, line in enumerate(lines) if line[0] == " " and line.strip()]
    if not indented:
        return None
    n = rng.choice(indented)
    lines[n] = lines[n].removeprefix(" " * min(4, len(lines[n]) - len(lines[n].lstrip(" "))))
    return "".join(lines)


def lines_swapped(block: Block, rng: random.Random) -> str | None:
    """Two neighbouring lines are swapped."""
    lines = block.text.splitlines(keepends=True)
    positions = [n for n in range(len(lines) - 1) if lines[n] != lines[n + 1]]
    if not positions:
        return None
    n = rng.choice(positions)
    lines[n : n + 2] = lines[n + 1], lines[n]
    return "".join(lines)


Breakage = Callable[[Block, random.Random], str | None]
BREAKAGES: dict[str, Breakage] = {
    breakage.__name__: breakage
    for breakage in (
        operator_swapped,
        bracket_dropped,
        comma_dropped,
        colon_dropped,
        quote_dropped,
        name_replaced,
        letters_swapped,
        indentation_lost,
        lines_swapped,
    )
}


def break_block(block: Block, rng: random.Random) -> tuple[str, str] | None:
    """Break a block by a random breakage: (name of the breakage, broken text), or None if none of them applies."""
    for name in rng.sample(sorted(BREAKAGES), len(BREAKAGES)):
        text = BREAKAGES[name](block, rng)
        if text is not None and text != block.text and text.strip():
            return name, text
    return None


def blocks(source: str, count: int, rng: random.Random) -> list[Block]:
    """Choose up to `count` blocks of 1 to MAX_LINES lines of a file's code, each with its preceding lines.

    No block has a line of a docstring or of another multi-line string. Source that this Python cannot parse,
    or whose lines do not end in \\n alone, gives no blocks.
    """
    try:
        words = dict(_words_by_line(source))
    except (SyntaxError, tokenize.TokenError):
        return []
    lines = [line + "\n" for line in source.split("\n")]
    chosen = []
    for first in rng.sample(sorted(words), len(words)):  # `first` and `last` are line numbers, from 1
        length, last = rng.randint(1, MAX_LINES), first
        while last - first + 1 < length and last + 1 in words:
            last += 1
        preceding = "".join(lines[max(0, first - 1 - PRECEDING_LINES) : first - 1])
        if preceding.strip() and sum(len(words[line]) for line in range(first, last + 1)) > 2:
            chosen.append(_block(lines, words, first, last, preceding))
        if len(chosen) == count:
            break
    return chosen


def _block(lines: list[str], words: dict[int, list[Word]], first: int, last: int, preceding: str) -> Block:
    """The block of the lines `first` to `last`."""
    block_words, offset = [], 0
    for line in range(first, last + 1):
        block_words += [Word(w.kind, w.text, w.start + offset, w.stop + offset) for w in words[line]]
        offset += len(lines[line - 1])
    return Block(preceding, "".join(lines[first - 1 : last]), tuple(block_words))


def _words_by_line(source: str) -> Iterator[tuple[int, list[Word]]]:
    """Yield (line number, words) for each line of code that has no part of a multi-line string."""
    if "\r" in source:
        return  # the tokenizer counts lines that end in \r differently
    by_line: dict[int, list[Word]] = {}
    string_lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        (row, start), (last_row, stop) = token.start, token.end
        if row != last_row:
            string_lines.update(range(row, last_row + 1))
        elif token.type in KINDS:
            kind = "keyword" if keyword.iskeyword(token.string) else KINDS[token.type]
            by_line.setdefault(row, []).append(Word(kind, token.string, start, stop))
    for row, words in by_line.items():
        if row not in string_lines:
            yield row, words


def _names(text: str) -> set[str]:
    """The identifiers in a text that need not be Python: names in comments and strings, too."""
    return {word for word in re.findall(r"\w+", text) if word.isidentifier() and not keyword.iskeyword(word)}


def _choose(words: list[Word], rng: random.Random) -> Word | None:
    return rng.choice(words) if words else None


def _replace(block: Block, word: Word, text: str) -> str:
    return block.text[: word.start] + text + block.text[word.stop :]
