"""Jobs and their endings: the messages between the grading process and the harness."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, eq=False)
class Call:
    """One call of the answer's function on every rank; `scenario`: what is special, such as "rank 1 has no values"."""

    args: list[tuple]  # by rank
    scenario: str


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
    driver     call drive(function, *arguments) of the driver.py beside checks.py in place of the function itself: it
               may hand it what cannot be sent (models, functions) and watch. From the course it imports
               harness/ and its own folder.
    loads      modules to load once, before the ranks are forked: DDP and torch.optim need "torch._dynamo", which
               each rank would load anew
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
    loads: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Task:
    """A job of the answer number `owner`, run on the file `path`. The tasks of a `lane` run one after the other.

    package   of the exercise, where a driver is
    """

    job: Job
    path: Path
    owner: int
    lane: int
    package: str


def run_of(job: Job, owner: int):
    """A key for the run of `job` for an answer: one that does not use the answer runs once for all of a lane."""
    return job if job.script else (owner, job)


@dataclass
class Ending:
    """How the ranks of a job ended.

    exit_codes       by rank, negative: a signal
    ended_by_grader  ranks that had to be killed
    time_was_up      whether the ranks were told to end
    stood_still      and that because nothing moved any more
    collectives      by rank, in order, such as "all_reduce, line 12"
    """

    exit_codes: list[int | None]
    ended_by_grader: list[int]
    time_was_up: bool
    stood_still: bool
    collectives: list[list[str]] = field(default_factory=list)
