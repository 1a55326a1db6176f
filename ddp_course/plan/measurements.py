"""Measurements of notebook 15: save, load and summarise them.

The stored runs are from its authors' machine. The page shows them where no cluster of namespaces can be made.

A run of the notebook writes notebooks/scripts/15_measured.json. The stored runs have more cables, accumulations and
steps than the page asks for. To measure all of them again, on a quiet machine:

cd notebooks
papermill 15_*.ipynb /dev/null -y "{SPEEDS: [100mbit, 200mbit, 400mbit], ACCUMULATIONS: [1, 4], STEPS: 4}"
cp scripts/15_measured.json ../ddp_course/plan/stored/steps.json
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddp_course.base.atomic_file import replacing
from ddp_course.plan.schedule import Compute

FILE = Path(__file__).parent / "stored" / "steps.json"


def usual(seconds: Sequence[float]) -> float:
    """The lower quartile: other programs disturb it less than the mean, and it is less lucky than the minimum."""
    return sorted(seconds)[(len(seconds) - 1) // 4]


def usual_compute(records: Sequence[Sequence[float]]) -> Compute:
    """`usual` of each part of a step.

    records: (forward, backward, optimizer) seconds of each step, of the slowest rank where ranks wait for each other.
    """
    return Compute(*map(usual, zip(*records, strict=True)))


def save(results: Mapping[int, Mapping[int, dict]], file: Path) -> None:
    """Write the results as JSON, with four digits of each float. results: machines -> rank -> the rank's report."""
    file.parent.mkdir(exist_ok=True)
    rounded = json.loads(json.dumps(results), parse_float=lambda digits: float(f"{float(digits):.4g}"))
    with replacing(file) as stream:
        stream.write(json.dumps(rounded, separators=(",", ":")) + "\n")


def load(file: Path = FILE) -> dict[int, dict[int, dict]]:
    """Read results that `save` has written; JSON's keys become integers again."""
    stored = json.loads(file.read_text())
    return {int(nodes): {int(rank): report for rank, report in ranks.items()} for nodes, ranks in stored.items()}
