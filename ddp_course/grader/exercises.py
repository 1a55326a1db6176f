"""Find the exercises and load what belongs to each: 05.3 is solutions/05_sharding_data/3, beside its notebook.

checks.py holds

    JOBS    what to run: a list of harness.job.Job
    checks  functions below @check that judge what the jobs did, asked in the order in which they are defined:
            see vocabulary.py

given.py, if there is one, is the script that the exercise hands out. driver.py is called inside a rank where a check
needs more than calls with plain arguments: see harness/job.py. wrong.py holds the answers, wrong and right, that the
grader is tested with: see authoring/answers.py. Title and hints stand in the notebook.

Answers that raise, hang, die or leave something undone never reach the checks: judge.py deals with them. A new
exercise needs a folder, its cells in the notebook, and in wrong.py a wrong answer for each of its checks and for each
sentence of what it demands.
"""

import functools
import importlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from ddp_course.base.errors import InputError
from ddp_course.grader.answer_record import Job, JobRecord
from ddp_course.grader.answer_run import run_answers
from ddp_course.grader.vocabulary import Check

SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"
# Makes each folder there a package below this module, so that the files of an exercise import each other
# (`from .driver import WIDTH`), and what is sent to a rank is found there by its name.
__path__ = [str(SOLUTIONS)]


@dataclass
class Exercise:
    """One exercise, with what its checks.py holds."""

    name: str
    folder: Path
    jobs: list[Job] = field(init=False)
    checks: list[Check] = field(init=False)

    def __post_init__(self):
        checks = self.module("checks")
        self.jobs = checks.JOBS
        self.checks = in_order(checks)

    @property
    def package(self) -> str:
        """The name under which Python imports its folder."""
        return f"{__name__}.{self.folder.parent.name}.{self.folder.name}"

    @property
    def answer_name(self) -> str:
        """The file name of an answer to it."""
        return f"{self.name.replace('.', '_')}.py"

    def module(self, name: str) -> ModuleType:
        """One of the files in its folder, such as "checks"."""
        return importlib.import_module(f"{self.package}.{name}")

    @property
    def given_script(self) -> Path | None:
        """The script that it hands out."""
        path = self.folder / "given.py"
        return path if path.exists() else None

    @functools.cached_property
    def title(self) -> str:
        return re.search(rf"^## Exercise {self.name}: (.+)$", self._prose(), re.MULTILINE)[1]

    @functools.cached_property
    def hints(self) -> list[str]:
        """From a nudge to nearly all of it: the numbered list of the cell that begins with "**Hints for 05.3**"."""
        listed = re.search(rf"^\*\*Hints for {self.name}\*\*\n(.+?)\n\n\n", self._prose(), re.MULTILINE | re.DOTALL)
        return [text.strip() for text in re.split(r"^\d\. ", listed[1], flags=re.MULTILINE)[1:]]

    def _prose(self):
        """The Markdown of the notebook, two blank lines behind each cell."""
        cells = json.loads(self.folder.parent.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
        return "".join("".join(cell["source"]) + "\n\n\n" for cell in cells if cell["cell_type"] == "markdown")

    def run(self, answer: str | Path, jobs: list[Job] | None = None) -> list[JobRecord]:
        """Run `jobs`, or all of its own, on the file `answer`; what each of them did."""
        [records] = run_answers([(Path(answer), self.jobs if jobs is None else jobs, self.package)])
        return records


def in_order(module: ModuleType) -> list[Check]:
    """The checks that a module defines, also those that stand in a list, in that order."""
    values = [value if isinstance(value, list) else [value] for value in vars(module).values()]
    return [value for several in values for value in several if isinstance(value, Check)]


def names() -> list[str]:
    """The name of every exercise, in order: "02.1", ..."""
    return [f"{path.parts[-3][:2]}.{path.parts[-2]}" for path in sorted(SOLUTIONS.glob("[0-9][0-9]_*/[0-9]/checks.py"))]


@functools.cache
def load(name: str) -> Exercise:
    """The exercise `name`, such as "05.3". Raises InputError if there is none."""
    if name not in names():
        raise InputError(f"there is no question {name!r}; there are {', '.join(names())}")
    notebook, number = name.split(".")
    [folder] = SOLUTIONS.glob(f"{notebook}_*/{number}")
    return Exercise(name, folder)
