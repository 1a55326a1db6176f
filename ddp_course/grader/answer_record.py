"""The records of a grading: each job, and each call of the answer's function over all ranks."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ddp_course.grader.harness.job import Ending, Job
from ddp_course.grader.harness.notes import Operation, RankRecord, read_rank


@dataclass
class JobRecord:
    """The record of one job's ranks.

    started      false if an earlier job had failed, the answer's time was used up, or it was cut off
    cut_off      why it did not run to its end, or at all, if the answer is not to blame
    finished     false if it was not started, was cut off, or the answer killed the process that runs the ranks
    time_was_up  whether its ranks were ended because their time was up
    stood_still  whether it was ended because no rank computed any more: Job.patience
    """

    job: Job
    ranks: list[RankRecord]
    started: bool = False
    cut_off: str = ""
    finished: bool = False
    time_was_up: bool = False
    stood_still: bool = False
    collectives: list[list[str]] = field(default_factory=list)  # by rank, such as "all_reduce, line 12"


@dataclass
class Case:
    """One call of the answer's function on all ranks. Every list has one element per rank."""

    scenario: str
    args: list[tuple]
    results: list
    tensors_after: list[list]  # the tensors among the arguments, after the call
    operations: list[list[Operation]]

    @property
    def world(self) -> int:
        return len(self.args)

    @property
    def where(self) -> str:
        """The beginning of a sentence about this case: see the function `where`."""
        return where(self.world, self.scenario)


def where(world: int, scenario: str = "") -> str:
    """The beginning of a sentence about a call, such as "with 3 ranks (rank 1 has no values): "."""
    return f"with {world} rank{'s' * (world > 1)}{f' ({scenario})' if scenario else ''}: "


def cases(records: list[JobRecord]) -> Iterator[Case]:
    """Every call of these jobs, in order. The jobs must have run to their end."""
    for record in records:
        for number, call in enumerate(record.job.calls):
            results = [rank.results[number] for rank in record.ranks]
            tensors_after = [rank.tensors_after[number] for rank in record.ranks]
            operations = [rank.operations[number] for rank in record.ranks]
            yield Case(call.scenario, call.args, results, tensors_after, operations)


def read_record(folder: Path, job: Job) -> JobRecord:
    """The record of a job, from the files in its `folder`. Some may be missing, if a rank or the harness was killed."""
    ranks = [read_rank(folder, rank) for rank in range(job.world)]
    ending_file = folder / "ended.json"
    if not ending_file.is_file():
        return JobRecord(job, ranks, started=folder.exists())
    ending = Ending(**json.loads(ending_file.read_text()))
    for rank, (record, code) in enumerate(zip(ranks, ending.exit_codes, strict=True)):
        record.exit_code = code
        record.ended_by_grader = rank in ending.ended_by_grader
    return JobRecord(
        job,
        ranks,
        started=True,
        finished=True,
        time_was_up=ending.time_was_up,
        stood_still=ending.stood_still,
        collectives=ending.collectives,
    )
