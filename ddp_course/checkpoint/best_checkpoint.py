"""The best checkpoint of a run by a validation metric: the file `best`, next to `latest`, names it, and it is kept.

Training continues past the best step, so the newest checkpoint may be a worse one. The best one is computed from the
metrics and the checkpoints on the disk, with no state in memory, so a resumed run names the same one as a run that was
not stopped.
"""

import math
from pathlib import Path

from ddp_course.base.json_file import parse
from ddp_course.checkpoint import checkpoint
from ddp_course.checkpoint.run_files import CHECKPOINTS, METRICS, newest_first, step_of


def name_best(run_dir: Path, key: str) -> float:
    """Let the file `best` name the checkpoint whose step has the lowest `key` in the metrics; of equals, the earliest.

    Call it on one rank, after `RunDirectory.begin`. Returns the lowest value; inf if no whole checkpoint has one.
    """
    metrics = run_dir / METRICS
    records = map(parse, metrics.read_bytes().splitlines()) if metrics.exists() else ()
    values = {record["step"]: record[key] for record in records if isinstance(record.get(key), float | int)}
    steps = [path for path in newest_first(run_dir / CHECKPOINTS) if step_of(path) in values]
    whole = [path for path in reversed(steps) if checkpoint.problem(path) is None]
    if not whole:
        return math.inf
    best = min(whole, key=lambda path: values[step_of(path)])
    checkpoint.write_name(run_dir, checkpoint.BEST, best)
    return values[step_of(best)]


def best_valid(run_dir: Path) -> Path | None:
    """The checkpoint that the file `best` names; None, after printing the reason, if it is not whole."""
    best = checkpoint.read_name(run_dir, checkpoint.BEST)
    if best and (damage := checkpoint.problem(best)):
        print(f"passing over {best}, the best: {damage}", flush=True)
        return None
    return best
