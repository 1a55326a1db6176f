"""A pointer to a section leads to it: "[11.6](11_failures_that_hang.ipynb)", "notebook [13](...), section 13.1"."""

import json
import re
from functools import cache
from pathlib import Path

import pytest

from ddp_course.authoring import commands as authoring

pytestmark = pytest.mark.smoke

ROOT = authoring.ROOT
PAGES = [*authoring.select(ROOT, ("notebooks", "solutions", "exercises"), []), *sorted(ROOT.glob("notebooks/*.md"))]
NUMBER = r"\d{1,2}[a-z]?\.\d+"
LINKED = re.compile(rf"\[({NUMBER})\]\(([^)#\s]+\.ipynb)\)")
NAMED = re.compile(rf"\bsections? ({NUMBER}(?:(?:, | and | to )(?:section )?{NUMBER})*)")


def markdown(path: Path) -> str:
    if path.suffix == ".md":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@cache
def sections(path: Path) -> list[str]:
    return re.findall(rf"^## ({NUMBER}) ", markdown(path), re.MULTILINE)


def notebook(section: str) -> Path | None:
    number, letter = re.match(r"(\d+)([a-z]?)", section).groups()
    return next(iter((ROOT / "notebooks").glob(f"{int(number):02}{letter}_*.ipynb")), None)


def dangling(text: str, folder: Path) -> list[str]:
    """The pointers of a page that lead to no section."""
    pointers = [(number, (folder / target).resolve()) for number, target in LINKED.findall(text)]
    pointers = [(number, path) for number, path in pointers if path.parent.name == "notebooks"]
    pointers += [(section, notebook(section)) for some in NAMED.findall(text) for section in re.findall(NUMBER, some)]
    return [
        number for number, path in pointers if path is None or re.sub(r"^0(?=\d)", "", number) not in sections(path)
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_pointer_leads_to_a_section(path):
    assert not dangling(markdown(path), path.parent)


def test_a_pointer_to_no_section_is_reported():
    text = "[11.6](11_failures_that_hang.ipynb) [11.60](11_failures_that_hang.ipynb), sections 13.1, 13.9 and 99.1"
    assert dangling(text, ROOT / "notebooks") == ["11.60", "13.9", "99.1"]
