"""Writes the notes of a rank while it runs, so that nothing is lost if it dies, and reads them.

rank_0.jsonl   a line for each event, each in one write: an Operation, a call that begins, or fields of the RankRecord
rank_0.2.pt    what call number 2 returned, and its tensor arguments afterwards: written aside and then renamed

The reader trusts none of it, for the answer can write there too. A pipe or a device, which has no end, is not read;
lines are JSON, and what was returned is loaded with weights_only=True, which makes tensors and plain values of it and
runs no code.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch

LARGEST_RESULT = 4 * 2**20  # bytes
TOO_LARGE, UNREADABLE = "something very large", "something that cannot be read"
KEPT_OUTPUT = 16_384  # bytes from the start and from the end of what a rank printed


@dataclass(frozen=True)
class Operation:
    """A collective, send or recv that a rank started: `bytes` it handed over (recv: took), the `peer` of a send or
    recv, the `line` of the answer."""

    op: str
    bytes: int
    peer: int | None
    line: int | None


@dataclass
class RankRecord:
    """The record of one rank. Lists are by call; a script counts as one call that returns nothing."""

    results: list = field(default_factory=list)
    after: list[list] = field(default_factory=list)  # the tensors among the arguments, after the call
    operations: list[list[Operation]] = field(default_factory=list)
    raised: dict | None = None  # type, text, line, code, not_implemented
    missing: dict | None = None  # the function that is not there, and those that are
    left: int | None = None  # code of sys.exit
    stuck: bool = False
    line: int | None = None  # of the answer, where it got stuck
    not_waited_for: list = field(default_factory=list)  # [op, line] of what it received: see pending.py
    read_early: list = field(default_factory=list)  # [op, its line, line] of what was read before it was waited for
    changed: list = field(default_factory=list)  # lines of sends whose tensor changed on the way
    ended: bool = False
    exit_code: int | None = None
    ended_by_grader: bool = False
    stdout: str = ""
    stderr: str = ""


NOTED = (
    "raised",
    "missing",
    "left",
    "stuck",
    "line",
    "not_waited_for",
    "read_early",
    "changed",
    "ended",
)  # by the rank itself


class Notes:
    """The notes of one rank: called with a dict of fields, those of the RankRecord or of an Operation.

    A process that the answer forked ends at the first thing it would note, instead of going on as a second rank.
    """

    def __init__(self, folder: Path, rank: int):
        self.folder, self.rank, self.pid = folder, rank, os.getpid()
        self.file = os.open(folder / f"rank_{rank}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __call__(self, entry: dict):
        self._end_in_a_fork()
        os.write(self.file, json.dumps(entry).encode() + b"\n")

    def returned(self, number: int, result: Any, after: list[torch.Tensor]):
        """Call `number` returned `result`; its tensor arguments are now `after`."""
        self._end_in_a_fork()
        path = self.folder / f"rank_{self.rank}.{number}.pt"
        aside = path.with_suffix(".part")
        torch.save([sendable(result), sendable(after)], aside)
        if aside.stat().st_size > LARGEST_RESULT:
            torch.save([TOO_LARGE, []], aside)
        aside.rename(path)

    def _end_in_a_fork(self):
        if os.getpid() != self.pid:
            os._exit(0)


def sendable(value: Any) -> Any:
    """`value` of tensors, plain values, sets and dicts; what NumPy makes becomes plain, tuples and other sequences
    become lists, and anything else its repr."""
    if torch.is_tensor(value):
        return value.detach().cpu().as_subclass(torch.Tensor).clone()  # a view would bring all of its storage
    if type(value).__module__ == "numpy":
        value = value.tolist()
    if value is None or isinstance(value, bool):
        return value
    for plain, kind in ((int, Integral), (float, Real), (str, str)):
        if isinstance(value, kind):
            return plain(value)
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [sendable(element) for element in value]
    if isinstance(value, (set, frozenset)):
        return {_key(element) for element in value}
    if isinstance(value, dict):
        return {_key(key): sendable(element) for key, element in value.items()}
    return repr(value)[:200]


def _key(value):
    """A tuple stays one where it has to be hashed."""
    return tuple(map(_key, value)) if isinstance(value, (tuple, frozenset)) else sendable(value)


def read_rank(folder: Path, rank: int) -> RankRecord:
    """All that a rank left in `folder`, also if it came to a sudden end."""
    record = read_events(folder, rank)
    record.stdout, record.stderr = (_output(folder / f"rank_{rank}.{name}") for name in ("stdout", "stderr"))
    for number in count():
        path = folder / f"rank_{rank}.{number}.pt"
        if not path.is_file():
            return record
        try:
            result, after = torch.load(path, weights_only=True)
        except Exception:  # whatever it says: the answer has written to this file
            result, after = UNREADABLE, []
        record.results.append(result)
        record.after.append(after)


def read_events(folder: Path, rank: int) -> RankRecord:
    """The record of a rank, without its results and its output."""
    record = RankRecord(operations=[[]])  # before the first call, or of a script
    notes = folder / f"rank_{rank}.jsonl"
    for line in notes.read_text(errors="replace").splitlines() if notes.is_file() else []:
        try:
            note = dict(json.loads(line))
            operation = Operation(**note) if "op" in note else None
        except (ValueError, TypeError):
            continue  # the disk was full, the rank died in the middle, or the answer has written it
        if operation:
            record.operations[-1].append(operation)
        elif "call" in note:
            record.operations.append([])
        for name in note.keys() & NOTED:
            setattr(record, name, note[name])
    if len(record.operations) > 1:
        at_import = record.operations.pop(0)
        record.operations[0] = at_import + record.operations[0]
    return record


def _output(path):
    """The content of the file, the middle left out if it is long."""
    if not path.is_file():
        return ""
    with open(path, "rb") as file:
        start = file.read(2 * KEPT_OUTPUT)
        rest = file.seek(0, os.SEEK_END) - len(start)
        if rest > 0:
            file.seek(-KEPT_OUTPUT, os.SEEK_END)
            start = start[:KEPT_OUTPUT] + b"\n...\n" + file.read()
    return start.decode(errors="replace")
