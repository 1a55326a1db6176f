"""The measurements of notebook 15 on its authors' machine, for machines on which no cluster can be made of namespaces.

A run of the notebook writes notebooks/scripts/15_measured.json. After one on a quiet machine:
cp notebooks/scripts/15_measured.json ddp_course/plan/stored/steps.json
"""

import json
from collections.abc import Mapping
from pathlib import Path

from ddp_course.base.atomic_file import replacing

FILE = Path(__file__).parent / "stored" / "steps.json"


def save(results: Mapping[int, Mapping[int, dict]], file: Path = FILE) -> None:
    """results: number of machines -> rank -> what the rank reported. Times keep four digits."""
    file.parent.mkdir(exist_ok=True)
    with replacing(file) as stream:
        stream.write(json.dumps(_short(results), separators=(",", ":")) + "\n")


def load(file: Path = FILE) -> dict[int, dict[int, dict]]:
    """The same again, with its whole numbers as keys."""
    stored = json.loads(file.read_text())
    return {int(nodes): {int(rank): report for rank, report in ranks.items()} for nodes, ranks in stored.items()}


def _short(value):
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {key: _short(item) for key, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, list | tuple) else value
