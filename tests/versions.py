"""Records which tests passed with which torch, and writes docs/versions.md from the records. make test-torch runs this.

    python tests/versions.py REPORT     # pytest's --junit-xml of a run with the torch that is installed here

docs/versions.json keeps, for each torch, Python and system, the last run of each file of tests.
Exit code 1: a test failed.
"""

import datetime
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD, PAGE = ROOT / "docs" / "versions.json", ROOT / "docs" / "versions.md"
AREAS = {"notebooks": "tests.test_notebooks", "ladder": "tests.test_ladder", "doctor": "doctor.tests."}
OTHERS = "trainers and units"
HEAD = """# Which versions were tested

Written by `make test-torch TORCH_VERSION=...` from [versions.json](versions.json): the last run of each test.
The default installation has the versions in `requirements/`, and `make test` tests it on every change.
Python 3.14 was run in a chroot: tests that enter a network namespace fail there, because it leads out of the chroot.

| torch | Python | system | area | passed | failed | skipped | date | commit |
|---|---|---|---|---|---|---|---|---|
"""


def parts(report: Path) -> dict[str, Counter]:
    """{part: outcomes} of pytest's report, where a part is a file of tests, or a notebook."""
    counts: dict[str, Counter] = {}
    for case in ElementTree.parse(report).iterfind(".//testcase[@name]"):  # an interrupted run leaves some without
        notebook = re.search(r"test_notebook_runs\[(.*)\]", case.get("name"))
        part = f"{case.get('classname')} {notebook[1]}" if notebook else case.get("classname")
        outcomes = {child.tag for child in case} & {"failure", "error", "skipped"}
        outcome = "passed" if not outcomes else "skipped" if outcomes == {"skipped"} else "failed"
        counts.setdefault(part, Counter())[outcome] += 1
    return counts


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def add(record: dict, report: Path) -> bool:
    """Put the report into `record`; return whether all its tests passed."""
    commit = git("rev-parse", "--short=7", "HEAD") + "-dirty" * bool(git("status", "--porcelain", "--", ".", ":!docs"))
    run = {"date": datetime.date.today().isoformat(), "commit": commit}
    system = f"{platform.system()} {platform.machine()}"
    key = f"{importlib.metadata.version('torch')} | {platform.python_version()} | {system}"
    counts = parts(report)
    for part, outcomes in counts.items():
        record.setdefault(key, {})[part] = dict(sorted(outcomes.items())) | run
    return not any(outcomes["failed"] for outcomes in counts.values())


def area_of(part: str) -> str:
    return next((area for area, start in AREAS.items() if part.startswith(start)), OTHERS)


def page(record: dict) -> str:
    lines = []
    for key in sorted(record, key=lambda key: [int(number) for number in re.findall(r"\d+", key)[:3]]):
        groups: dict[tuple[int, str], list[str]] = {}
        for part, run in record[key].items():
            groups.setdefault(([*AREAS, OTHERS].index(area_of(part)), run["commit"]), []).append(part)
        for (index, commit), members in sorted(groups.items()):
            runs = [record[key][part] for part in members]
            outcomes = [str(sum(run.get(name, 0) for run in runs)) for name in ("passed", "failed", "skipped")]
            numbers = re.findall(r"notebooks/(\w+?)_", " ".join(sorted(members)))
            area = " ".join([[*AREAS, OTHERS][index], *numbers])
            date = max(run["date"] for run in runs)
            lines.append(f"| {key} | {area} | {' | '.join(outcomes)} | {date} | {commit} |\n")
    return HEAD + "".join(lines)


def main() -> int:
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    passed = add(record, Path(sys.argv[1]))
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page(record))
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
