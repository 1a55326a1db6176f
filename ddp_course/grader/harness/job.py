"""Jobs and their endings: the messages between the grading process and the harness."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, eq=False)
class Call:
    """One call of the answer's function on every rank; `scenario`: what is special, such as "rank 1 has no values"."""

    args: list[tuple]  # the arguments of each rank
    scenario: str


@dataclass(frozen=True, eq=False)
class LogsOf:
    """An argument that the harness replaces by the collectives of another job of the answer: a list for each rank."""

    job: "Job"


@dataclass(frozen=True, eq=False)
class Job:
    """One start on `world` ranks: of the answer as a script, or of calls of one of its functions in one group.

    seconds    on a FairClock, after which the ranks still running note the line that they are in, and are ended
    patience   seconds in which no rank computes, after which they are ended even before `seconds`
    tries      how often the job may run: again if its time was up; above 1 where a right answer can hang, too
    script     run this file instead of the answer
    may_fail   the run may fail and is not judged
    driver     call drive(function, *arguments) in the exercise's driver.py instead of the function. drive() calls the
               function, can give it arguments that cannot be pickled (models, functions), and observes it. Of the
               grader, driver.py imports only harness/.
    per_node   ranks of a node: LOCAL_RANK is set as if the ranks were on several nodes; None: all on one
    loads      modules to load once, before the ranks are forked: DDP and torch.optim need "torch._dynamo", which
               each rank would load for itself
    """

    world: int
    function: str | None = None
    calls: tuple[Call, ...] = ()
    seconds: float = 5.0
    patience: float = 3.0
    tries: int = 1
    script: Path | None = None
    may_fail: bool = False
    driver: bool = False
    per_node: int | None = None
    loads: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Task:
    """A job of answer number `answer_number`, run on the file `path`. The tasks of a `lane` run one after the other.

    package   of the exercise, which contains driver.py
    """

    job: Job
    path: Path
    answer_number: int
    lane: int
    package: str


def run_key(job: Job, answer_number: int):
    """A key for the run of `job` for an answer. A job with a script runs once for all answers of a lane."""
    return job if job.script else (answer_number, job)


@dataclass
class Ending:
    """How the ranks of a job ended.

    exit_codes       of each rank; negative: the number of the signal that killed it
    ended_by_grader  the ranks that the harness killed
    time_was_up      whether they were ended because their time was up
    stood_still      whether that was because no rank computed any more
    collectives      of each rank, in order, such as "all_reduce, line 12"
    """

    exit_codes: list[int | None]
    ended_by_grader: list[int]
    time_was_up: bool
    stood_still: bool
    collectives: list[list[str]] = field(default_factory=list)
