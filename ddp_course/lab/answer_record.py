"""What a grading runs, and what it saw: jobs with their calls, and the record of each rank.

The ranks leave their notes in files, one JSON object a line (harness/rank.py says which); here they are read.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

KEPT_OUTPUT = 16_384  # bytes from the start and from the end of what a rank printed


@dataclass(frozen=True, eq=False)
class Call:
    """One call of the answer's function on every rank. `given` says what is special, as in "rank 1 has no values"."""

    args: list[tuple]  # by rank
    given: str


@dataclass(frozen=True, eq=False)
class LogsOf:
    """As an argument: the collectives that the ranks of another job of the same list started, a list for each rank."""

    job: "Job"


@dataclass(frozen=True, eq=False)
class Job:
    """One start on `world` ranks: of the answer as a script, or of calls of one of its functions in one group.

    seconds    of computing until a rank that has not ended is asked where it is, and ended
    patience   seconds in which nothing moves, after which it is ended sooner
    tries      how often it may run: once more if it did not end, where that can happen through nobody's fault
    script     run this file instead of the answer
    may_fail   the run may fail and is not judged
    driver     a file beside the question whose drive(function, *arguments) is called in place of the function itself:
               it may hand it what cannot be sent (models, functions) and watch. It imports torch and nothing of ours.
    loads      modules to load once, before the ranks are forked: DDP and torch.optim need "torch._dynamo", which
               would cost each rank more than a second
    """

    world: int
    function: str | None = None
    calls: tuple[Call, ...] = ()
    seconds: float = 5.0
    patience: float = 3.0
    tries: int = 1
    script: Path | None = None
    may_fail: bool = False
    driver: Path | None = None
    loads: tuple[str, ...] = ()


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
    """What one rank did. Lists are by call; a script counts as one call that returns nothing."""

    results: list = field(default_factory=list)
    after: list[list] = field(default_factory=list)  # the tensors among the arguments, after the call
    operations: list[list[Operation]] = field(default_factory=list)
    raised: dict | None = None  # type, text, line, code, not_implemented
    missing: dict | None = None  # the function that is not there, and those that are
    left: int | None = None  # code of sys.exit
    stuck: bool = False
    line: int | None = None  # of the answer, where it got stuck
    ended: bool = False
    exit_code: int | None = None
    ended_by_grader: bool = False
    stdout: str = ""
    stderr: str = ""


@dataclass
class JobRecord:
    """What the ranks of one job did.

    started      false if an earlier job had failed or the time was used up
    finished     false also if the answer killed the process that runs the ranks
    stood_still  ended because nothing moved any more
    """

    job: Job
    ranks: list[RankRecord]
    started: bool = False
    finished: bool = False
    stood_still: bool = False
    collectives: list[list[str]] = field(default_factory=list)  # by rank, such as "all_reduce, line 12"


@dataclass
class Case:
    """One call of the answer's function, seen over all ranks: every list is by rank."""

    given: str
    args: list[tuple]
    results: list
    after: list[list]  # the tensors among the arguments, after the call
    operations: list[list[Operation]]

    @property
    def world(self) -> int:
        return len(self.args)

    @property
    def where(self) -> str:
        """How a sentence about this case begins."""
        return where(self.world, self.given)


def where(world: int, given: str = "") -> str:
    """ "with 3 ranks (rank 1 has no values): " """
    return f"with {world} rank{'s' * (world > 1)}{f' ({given})' if given else ''}: "


def cases(records: list[JobRecord]) -> Iterator[Case]:
    """Every call in jobs that ran to their end, in order."""
    for record in records:
        for number, call in enumerate(record.job.calls):
            results = [rank.results[number] for rank in record.ranks]
            after = [rank.after[number] for rank in record.ranks]
            operations = [rank.operations[number] for rank in record.ranks]
            yield Case(call.given, call.args, results, after, operations)


def read_record(folder: Path, job: Job) -> JobRecord:
    """The record of a job from what its ranks left in `folder`; also of one that came to a sudden end."""
    ranks = [_read_rank(folder, rank) for rank in range(job.world)]
    ended = folder / "ended.json"
    if not ended.exists():
        return JobRecord(job, ranks, started=folder.exists())
    how = json.loads(ended.read_text())
    for rank, (record, code) in enumerate(zip(ranks, how["exit_codes"], strict=True)):
        record.exit_code, record.ended_by_grader = code, rank in how["ended_by_grader"]
    return JobRecord(job, ranks, True, True, how["stood_still"], how["collectives"])


def _read_rank(folder, rank):
    record = RankRecord(stdout=_output(folder / f"rank_{rank}.stdout"), stderr=_output(folder / f"rank_{rank}.stderr"))
    notes = folder / f"rank_{rank}.jsonl"
    lines = notes.read_text(errors="replace").splitlines() if notes.exists() else []
    record.operations.append([])  # before the first call, or of a script
    for line in lines:
        note = json.loads(line)
        if "op" in note:
            record.operations[-1].append(Operation(**note))
        elif "call" in note:
            record.operations.append([])
        elif "returned" in note:
            record.results.append(_decoded(note["returned"]))
            record.after.append([_decoded(value) for value in note["after"]])
        elif "stuck" in note:
            record.stuck, record.line = True, note["stuck"]
        elif "missing" in note:
            record.missing = note
        else:
            [(name, value)] = note.items()
            setattr(record, name, value)
    if len(record.operations) > 1:
        at_import = record.operations.pop(0)
        record.operations[0] = at_import + record.operations[0]
    return record


def _output(path):
    """What is in the file, the middle left out if it is long."""
    if not path.exists():
        return ""
    with open(path, "rb") as file:
        start = file.read(2 * KEPT_OUTPUT)
        rest = file.seek(0, os.SEEK_END) - len(start)
        if rest > 0:
            file.seek(-KEPT_OUTPUT, os.SEEK_END)
            start = start[:KEPT_OUTPUT] + b"\n...\n" + file.read()
    return start.decode(errors="replace")


def _decoded(value: Any) -> Any:
    """The opposite of harness/rank.py's `encoded`; what it could only describe is a string."""
    if isinstance(value, list):
        return [_decoded(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"])).view(value["shape"])
    if "dict" in value:
        return {_hashable(_decoded(key)): _decoded(one) for key, one in value["dict"]}
    return value["repr"]


def _hashable(key):
    return tuple(key) if isinstance(key, list) else key
