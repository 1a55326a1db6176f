"""Break real Python code in known ways, so that of two versions it is certain which one is right.

A breakage changes one place of a few lines: an operator, a bracket, a name... The place is found with Python's own
tokenizer, so that nothing is changed inside a comment or a string, where it would not be an error.
"""

import io
import keyword
import random
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SWAPPED = {
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
    """A token of Python in a block of lines: `text` stands at block[start:stop]."""

    kind: str  # "name", "keyword", "operator" or "string"
    text: str
    start: int
    stop: int


@dataclass(frozen=True)
class Block:
    """Whole lines of a file with the words in them, and the whole lines before, which give them their meaning."""

    before: str
    text: str
    words: tuple[Word, ...]


def operator_swapped(block: Block, choose: random.Random) -> str | None:
    """== becomes !=, + becomes -, `and` becomes `or`, and so on."""
    word = _any([word for word in block.words if word.text in SWAPPED and word.kind != "string"], choose)
    return word and _replaced(block, word, SWAPPED[word.text])


def bracket_dropped(block: Block, choose: random.Random) -> str | None:
    """One of ( ) [ ] { } is missing."""
    word = _any([word for word in block.words if word.text in tuple("()[]{}")], choose)
    return word and _replaced(block, word, "")


def comma_dropped(block: Block, choose: random.Random) -> str | None:
    """A comma is missing."""
    word = _any([word for word in block.words if word.text == ","], choose)
    return word and _replaced(block, word, "")


def colon_dropped(block: Block, choose: random.Random) -> str | None:
    """The colon at the end of a line is missing."""
    ends = [word for word in block.words if word.text == ":" and block.text[word.stop : word.stop + 1] == "\n"]
    word = _any(ends, choose)
    return word and _replaced(block, word, "")


def quote_dropped(block: Block, choose: random.Random) -> str | None:
    """A string does not end."""
    word = _any([word for word in block.words if word.kind == "string"], choose)
    return word and _replaced(block, word, word.text[:-1])


def name_replaced(block: Block, choose: random.Random) -> str | None:
    """A name is another one from the same place in the file."""
    word = _any([word for word in block.words if word.kind == "name"], choose)
    nearby = sorted({one for one in _names(block.before + block.text) if word and one != word.text})
    return _replaced(block, word, choose.choice(nearby)) if word and nearby else None


def letters_swapped(block: Block, choose: random.Random) -> str | None:
    """Two neighbouring letters of a name or keyword have changed places."""
    words = [word for word in block.words if word.kind in ("name", "keyword")]
    places = [(word, n) for word in words for n in range(len(word.text) - 1) if word.text[n] != word.text[n + 1]]
    if not places:
        return None
    word, n = choose.choice(places)
    return _replaced(block, word, word.text[:n] + word.text[n + 1] + word.text[n] + word.text[n + 2 :])


def indentation_lost(block: Block, choose: random.Random) -> str | None:
    """A line begins up to four spaces too far to the left."""
    lines = block.text.splitlines(keepends=True)
    indented = [n for n, line in enumerate(lines) if line[0] == " " and line.strip()]
    if not indented:
        return None
    n = choose.choice(indented)
    lines[n] = lines[n].removeprefix(" " * min(4, len(lines[n]) - len(lines[n].lstrip(" "))))
    return "".join(lines)


def lines_swapped(block: Block, choose: random.Random) -> str | None:
    """Two neighbouring lines have changed places."""
    lines = block.text.splitlines(keepends=True)
    places = [n for n in range(len(lines) - 1) if lines[n] != lines[n + 1]]
    if not places:
        return None
    n = choose.choice(places)
    lines[n : n + 2] = lines[n + 1], lines[n]
    return "".join(lines)


Breakage = Callable[[Block, random.Random], str | None]
BREAKAGES: dict[str, Breakage] = {
    one.__name__: one
    for one in (
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


def broken(block: Block, choose: random.Random) -> tuple[str, str] | None:
    """(name of the breakage, the broken text), each applicable breakage being equally likely; None if none is."""
    for name in choose.sample(sorted(BREAKAGES), len(BREAKAGES)):
        text = BREAKAGES[name](block, choose)
        if text is not None and text != block.text and text.strip():
            return name, text
    return None


def blocks(source: str, count: int, choose: random.Random, most_lines: int = 3, lines_before: int = 8) -> list[Block]:
    """Up to `count` blocks of 1 to `most_lines` lines from anywhere in a file's code, each with the lines before it.

    Lines of a docstring or of another text over several lines belong to no block. Source that is not Python, or is
    of another version, or whose lines do not end in \\n alone, gives no blocks.
    """
    try:
        words = dict(_words_by_line(source))
    except (SyntaxError, tokenize.TokenError):
        return []
    lines = [line + "\n" for line in source.split("\n")]
    found = []
    for first in choose.sample(sorted(words), len(words)):
        length, last = choose.randint(1, most_lines), first  # numbers of lines, from 1
        while last - first + 1 < length and last + 1 in words:
            last += 1
        before = "".join(lines[max(0, first - 1 - lines_before) : first - 1])
        if before.strip() and sum(len(words[line]) for line in range(first, last + 1)) > 2:
            found.append(_block(lines, words, first, last, before))
        if len(found) == count:
            break
    return found


def _block(lines: list[str], words: dict[int, list[Word]], first: int, last: int, before: str) -> Block:
    moved, offset = [], 0
    for line in range(first, last + 1):
        moved += [Word(w.kind, w.text, w.start + offset, w.stop + offset) for w in words[line]]
        offset += len(lines[line - 1])
    return Block(before, "".join(lines[first - 1 : last]), tuple(moved))


def _words_by_line(source: str) -> Iterator[tuple[int, list[Word]]]:
    """(line number, words) of the lines that hold code and no part of a text over several lines."""
    if "\r" in source:
        return  # another end of lines than \n: their numbers would not be the tokenizer's
    by_line: dict[int, list[Word]] = {}
    inside: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        (row, start), (last_row, stop) = token.start, token.end
        if row != last_row:
            inside.update(range(row, last_row + 1))
        elif token.type == tokenize.NAME:
            kind = "keyword" if keyword.iskeyword(token.string) else "name"
            by_line.setdefault(row, []).append(Word(kind, token.string, start, stop))
        elif token.type == tokenize.OP:
            by_line.setdefault(row, []).append(Word("operator", token.string, start, stop))
        elif token.type == tokenize.STRING:
            by_line.setdefault(row, []).append(Word("string", token.string, start, stop))
    for row, words in by_line.items():
        if row not in inside:
            yield row, words


def _names(text: str) -> set[str]:
    words = "".join(c if c.isalnum() or c == "_" else " " for c in text).split()
    return {word for word in words if word.isidentifier() and not keyword.iskeyword(word)}


def _any(words: list[Word], choose: random.Random) -> Word | None:
    return choose.choice(words) if words else None


def _replaced(block: Block, word: Word, text: str) -> str:
    return block.text[: word.start] + text + block.text[word.stop :]
