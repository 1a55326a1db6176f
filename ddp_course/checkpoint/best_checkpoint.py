"""The checkpoint of a run that did best on held-out data: the file `best`, beside `latest`, names it, and it is kept.

Training goes on past the best step, so the newest checkpoint may be a worse one. Which is the best follows from the
metrics and from the checkpoints that are there: nothing has to be remembered, so a run that was stopped or killed and
goes on chooses as one that was not.
"""

import math
from pathlib import Path

from ddp_course.base.json_file import parse
from ddp_course.checkpoint import checkpoint, checksums
from ddp_course.checkpoint.run_files import CHECKPOINTS, METRICS


def settle(run_dir: Path, key: str) -> float:
    """Let `best` name the checkpoint whose step has the lowest `key` in the metrics; of equals, the earliest.

    Call it on one rank, once the run's folder has been begun. Returns that value; inf if no whole checkpoint has one.
    """
    values = values_of(run_dir, key)
    steps = [path for path in checksums.newest_first(run_dir / CHECKPOINTS) if checksums.step_of(path) in values]
    whole = [path for path in reversed(steps) if checkpoint.problem(path) is None]
    if not whole:
        return math.inf
    best = min(whole, key=lambda path: values[checksums.step_of(path)])
    checkpoint.name_as(run_dir, checkpoint.BEST, best)
    return values[checksums.step_of(best)]


def values_of(run_dir: Path, key: str) -> dict[int, float]:
    """Step -> value of the records of a run's metrics that have a number there."""
    metrics = run_dir / METRICS
    records = map(parse, metrics.read_bytes().splitlines()) if metrics.exists() else ()
    return {record["step"]: record[key] for record in records if isinstance(record.get(key), float | int)}


def best_valid(run_dir: Path) -> Path | None:
    """The checkpoint that `best` names, if it is whole; says what is wrong with one that is not."""
    best = checkpoint.named(run_dir, checkpoint.BEST)
    if best and (damage := checkpoint.problem(best)):
        print(f"passing over {best}, the best: {damage}", flush=True)
        return None
    return best
