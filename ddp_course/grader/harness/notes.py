"""Write the notes of a rank while it runs, so that they survive its death, and read them.

rank_0.jsonl   a line for each event, each in one write: an Operation, a call that begins, or fields of the RankRecord
rank_0.2.pt    what call number 2 returned, and its tensor arguments afterwards: written to another name, then renamed

The reader does not trust these files, because the answer can write to them too. Only regular files are read (a pipe
may have no end). Lines are JSON, and results are loaded with weights_only=True, which allows tensors and plain values
and runs no code.
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
    """A collective, send or recv that a rank started.

    bytes   that the rank passed to it; of a recv, the size of its buffer
    peer    the other rank of a send or recv, as a global rank
    line    of the answer's file; None if it was called elsewhere
    """

    op: str
    bytes: int
    peer: int | None
    line: int | None


@dataclass
class RankRecord:
    """The record of one rank. results, tensors_after and operations have one element per call.

    A script has no results; its operations are those of one call.
    """

    results: list = field(default_factory=list)
    tensors_after: list[list] = field(default_factory=list)  # the tensors among the arguments, after the call
    operations: list[list[Operation]] = field(default_factory=list)
    raised: dict | None = None  # type, text, line, code, not_implemented
    missing: dict | None = None  # function (the job's, which the answer does not define), defined (those it does)
    sys_exit_code: int | None = None
    stuck: bool = False  # the time was up while it ran
    line: int | None = None  # the answer's line in which it was stuck, if it was in one
    last_outcome: str = ""  # of the driver's last call of the function: "returned", "raised KeyError: 'a'"
    unwaited: list = field(default_factory=list)  # [op, line] of each operation but sends that was not waited for
    early_reads: list = field(default_factory=list)  # [op, its line, line of the read], for a read before the wait
    changed_sends: list = field(default_factory=list)  # lines of sends whose tensor changed before the wait
    ended: bool = False  # the script or all calls ran to their end
    exit_code: int | None = None
    ended_by_grader: bool = False
    stdout: str = ""
    stderr: str = ""


# The fields that the rank itself notes.
NOTED = "raised missing sys_exit_code stuck line last_outcome unwaited early_reads changed_sends ended".split()


class Notes:
    """The notes of one rank. A call appends a dict: the fields of an Operation, or some of the RankRecord's.

    A process that the answer forked exits when it would write a note: it must not continue as a second rank.
    """

    def __init__(self, folder: Path, rank: int):
        self.folder, self.rank, self.pid = folder, rank, os.getpid()
        self.file = os.open(folder / f"rank_{rank}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __call__(self, entry: dict):
        self._end_in_a_fork()
        os.write(self.file, json.dumps(entry).encode() + b"\n")

    def returned(self, number: int, result: Any, tensors_after: list[torch.Tensor]):
        """Save what call `number` returned, and the tensors among its arguments; TOO_LARGE above LARGEST_RESULT."""
        self._end_in_a_fork()
        path = self.folder / f"rank_{self.rank}.{number}.pt"
        part = path.with_suffix(".part")
        torch.save([sendable(result), sendable(tensors_after)], part)
        if part.stat().st_size > LARGEST_RESULT:
            torch.save([TOO_LARGE, []], part)
        part.rename(path)

    def _end_in_a_fork(self):
        if os.getpid() != self.pid:
            os._exit(0)


def sendable(value: Any) -> Any:
    """A copy of `value` made of tensors, plain values, lists, sets and dicts, which weights_only=True loads.

    NumPy's values become plain ones, tuples and other sequences lists, and anything else its repr.
    """
    if torch.is_tensor(value):
        return value.detach().cpu().as_subclass(torch.Tensor).clone()  # of a view, torch.save writes the whole storage
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
    """`sendable` for an element of a set or a key of a dict: tuples stay tuples, which can be hashed."""
    return tuple(map(_key, value)) if isinstance(value, (tuple, frozenset)) else sendable(value)


def read_rank(folder: Path, rank: int) -> RankRecord:
    """The record of a rank, from its files in `folder`; complete up to its death if it was killed."""
    record = read_events(folder, rank)
    record.stdout, record.stderr = (_output(folder / f"rank_{rank}.{name}") for name in ("stdout", "stderr"))
    for number in count():
        path = folder / f"rank_{rank}.{number}.pt"
        if not path.is_file():
            return record
        try:
            result, tensors_after = torch.load(path, weights_only=True)
        except Exception:  # of any kind: the answer has written to this file
            result, tensors_after = UNREADABLE, []
        record.results.append(result)
        record.tensors_after.append(tensors_after)


def read_events(folder: Path, rank: int) -> RankRecord:
    """The record of a rank, without its results and its output."""
    record = RankRecord(operations=[[]])  # those before the first call, or of a script
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
