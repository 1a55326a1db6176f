"""Records which tests passed with which torch, and writes docs/versions.md and README's table from the records.

make test-torch runs this.

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
RECORD, PAGE, README = ROOT / "docs" / "versions.json", ROOT / "docs" / "versions.md", ROOT / "README.md"
README_HEAD = "| PyTorch | Python | passed | failed | last run | commit |\n|---|---|---|---|---|---|\n"
AREAS = {"notebooks": "tests.test_notebooks", "ladder": "tests.test_ladder", "doctor": "doctor.tests."}
OTHERS = "trainers and units"
HEAD = """# Which versions were tested

Written by `make test-torch TORCH_VERSION=...` from [versions.json](versions.json): the last run of each test.
The default installation has the versions in `requirements/`, and `make test` tests it on every change.

| torch | Python | system | area | passed | failed | skipped | date | commit |
|---|---|---|---|---|---|---|---|---|
"""


def parts(report: Path) -> dict[str, Counter]:
    """{part: outcomes} of pytest's report. A part is a file of tests, or a notebook."""
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


def is_there(part: str) -> bool:
    module, _, notebook = part.partition(" ")
    files = [module.replace(".", "/") + ".py"] + [f"{notebook}.ipynb"] * bool(notebook)
    return all((ROOT / file).exists() for file in files)


def add(record: dict, report: Path) -> bool:
    """Put the report into `record`, remove files that no longer exist, return whether all its tests passed."""
    changed = git("status", "--porcelain", "--", ".", ":!docs", ":!README.md")  # both are written here
    commit = git("rev-parse", "--short=7", "HEAD") + "-dirty" * bool(changed)
    run = {"date": datetime.date.today().isoformat(), "commit": commit}
    system = f"{platform.system()} {platform.machine()}"
    key = f"{importlib.metadata.version('torch')} | {platform.python_version()} | {system}"
    for runs in record.values():
        for part in [part for part in runs if not is_there(part)]:
            del runs[part]
    counts = parts(report)
    for part, outcomes in counts.items():
        record.setdefault(key, {})[part] = dict(sorted(outcomes.items())) | run
    return not any(outcomes["failed"] for outcomes in counts.values())


def area_of(part: str) -> str:
    return next((area for area, start in AREAS.items() if part.startswith(start)), OTHERS)


def sorted_keys(record: dict) -> list[str]:
    return sorted(record, key=lambda key: [int(number) for number in re.findall(r"\d+", key)])


def page(record: dict) -> str:
    lines = []
    for key in sorted_keys(record):
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


def readme_rows(record: dict) -> str:
    """A row per torch and Python: all its outcomes, its newest date, the commit that most of its tests ran on."""
    rows = []
    for key in sorted_keys(record):
        torch, python, _ = key.split(" | ")
        runs = record[key].values()
        passed, failed = (sum(run.get(outcome, 0) for run in runs) for outcome in ("passed", "failed"))
        commits = Counter()
        for run in runs:
            commits[run["commit"]] += run.get("passed", 0)
        date = max(run["date"] for run in runs)
        rows.append(f"| {torch} | {python} | {passed} | {failed} | {date} | {commits.most_common(1)[0][0]} |\n")
    return "".join(rows)


def with_table(readme: str, record: dict) -> str:
    """README's text with the table of `record` in place of the table that it has."""
    start, table = readme.split(README_HEAD)
    return start + README_HEAD + readme_rows(record) + table[table.index("\n\n") + 1 :]


def main() -> int:
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    passed = add(record, Path(sys.argv[1]))
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page(record))
    README.write_text(with_table(README.read_text(), record))
    print(f"wrote {PAGE.relative_to(ROOT)} and the table of README.md")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
