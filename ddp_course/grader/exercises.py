"""Find the exercises and load their files. Exercise 05.3 is the folder solutions/05_sharding_data/3.

checks.py   JOBS, the list of harness.job.Job to run, and functions below @check that judge what the jobs did, in the
            order in which they are defined: see vocabulary.py
given.py    the script that the exercise hands out, if it does
driver.py   runs inside a rank, if a check needs more than calls with plain arguments: see harness/job.py
wrong.py    the wrong and right answers with which the grader is tested: see authoring/answers.py

The title and the hints are in the notebook, solutions/05_sharding_data.ipynb.

Checks only see jobs that ran to their end: judge.py handles answers that raise, hang or die. A new exercise needs a
folder, its cells in the notebook, and in wrong.py a wrong answer for each check and for each requirement that the text
of the exercise states.
"""

import functools
import importlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from ddp_course.base.errors import InputError
from ddp_course.grader.answer_record import JobRecord
from ddp_course.grader.answer_run import run_answers
from ddp_course.grader.harness.job import Job
from ddp_course.grader.verdict import Hint
from ddp_course.grader.vocabulary import Check

SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"
# Makes each folder there a package below this module, so that the files of an exercise can import each other
# (`from .driver import WIDTH`), and a rank can unpickle what they define.
__path__ = [str(SOLUTIONS)]


@dataclass
class Exercise:
    """One exercise: its folder, and the jobs and checks of its checks.py."""

    name: str
    folder: Path
    jobs: list[Job] = field(init=False)
    checks: list[Check] = field(init=False)

    def __post_init__(self):
        checks = self.module("checks")
        self.jobs = checks.JOBS
        self.checks = checks_in(checks)

    @property
    def package(self) -> str:
        """The package name under which the folder is imported."""
        return f"{__name__}.{self.folder.parent.name}.{self.folder.name}"

    @property
    def answer_name(self) -> str:
        """The file name of an answer, such as "05_3.py"."""
        return f"{self.name.replace('.', '_')}.py"

    def module(self, name: str) -> ModuleType:
        """A module of the folder, such as "checks"."""
        return importlib.import_module(f"{self.package}.{name}")

    @property
    def given_script(self) -> Path | None:
        """The script that the exercise hands out, or None."""
        path = self.folder / "given.py"
        return path if path.exists() else None

    @functools.cached_property
    def title(self) -> str:
        return re.search(rf"^## Exercise {self.name}: (.+)$", self._markdown(), re.MULTILINE)[1]

    @functools.cached_property
    def hints(self) -> list[str]:
        """The numbered list in the cell that begins with "**Hints for 05.3**"."""
        listed = re.search(rf"^\*\*Hints for {self.name}\*\*\n(.+?)\n\n\n", self._markdown(), re.MULTILINE | re.DOTALL)
        return [text.strip() for text in re.split(r"^\d\. ", listed[1], flags=re.MULTILINE)[1:]]

    def hint(self, number: int) -> Hint:
        """Hint `number`, from 1 on. Raises InputError if there is none."""
        if not 1 <= number <= len(self.hints):
            raise InputError(f"question {self.name} has hints 1 to {len(self.hints)}, not {number}")
        return Hint(self.hints[number - 1], number, len(self.hints), f"solutions/{self._notebook.name}")

    @property
    def _notebook(self) -> Path:
        return self.folder.parent.with_suffix(".ipynb")

    def _markdown(self) -> str:
        """The Markdown of the notebook, with two blank lines after each cell."""
        cells = json.loads(self._notebook.read_text(encoding="utf-8"))["cells"]
        return "".join("".join(cell["source"]) + "\n\n\n" for cell in cells if cell["cell_type"] == "markdown")

    def run(self, answer: str | Path, jobs: list[Job] | None = None) -> list[JobRecord]:
        """Run `jobs`, by default those of the exercise, on the file `answer`; return a record of each."""
        [records] = run_answers([(Path(answer), self.jobs if jobs is None else jobs, self.package)])
        return records


def checks_in(module: ModuleType) -> list[Check]:
    """The checks that a module defines, singly or in lists, in the order of definition."""
    lists = [value if isinstance(value, list) else [value] for value in vars(module).values()]
    return [value for values in lists for value in values if isinstance(value, Check)]


def names() -> list[str]:
    """The names of all exercises, sorted, such as "02.1"."""
    return [f"{path.parts[-3][:2]}.{path.parts[-2]}" for path in sorted(SOLUTIONS.glob("[0-9][0-9]_*/[0-9]/checks.py"))]


@functools.cache
def load(name: str) -> Exercise:
    """The exercise `name`, such as "05.3". Raises InputError if there is none."""
    if name not in names():
        raise InputError(f"there is no question {name!r}; there are {', '.join(names())}")
    notebook, number = name.split(".")
    [folder] = SOLUTIONS.glob(f"{notebook}_*/{number}")
    return Exercise(name, folder)
