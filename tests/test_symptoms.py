"""The index of messages: "shown in" means that the section's outputs have the message, "explained in" that it treats it."""

import re
from functools import cache
from pathlib import Path

import pytest

from ddp_course.authoring import commands as authoring
from ddp_course.authoring.notebook_run import output_texts, read_notebook

pytestmark = pytest.mark.smoke

NOTEBOOKS = authoring.ROOT / "notebooks"
ENTRY = re.compile(r"^### (`+) ?(.+?) ?\1\n\n(.+?)(?=\n#|\n\||\Z)", re.MULTILINE | re.DOTALL)
LINK = r"\[([^\]]+)\]\((\w+\.ipynb)\)"
PLACES = re.compile(rf"\b(shown|explained) in ({LINK}(?:(?:, | and ){LINK})*)", re.IGNORECASE)
ELSEWHERE = re.compile(r"(?:No section runs it|The text needs GPUs)\b")
ENTRIES = {message: text for _, message, text in ENTRY.findall((NOTEBOOKS / "symptoms.md").read_text(encoding="utf-8"))}


@cache
def sections(notebook: str) -> dict[str, tuple[str, str]]:
    """Heading -> everything that a reader sees of the section, and its outputs alone."""
    found, heading = {}, ""
    for cell in read_notebook(NOTEBOOKS / notebook).cells:
        parts = re.split(r"^## (.+)$", cell.source, flags=re.MULTILINE) if cell.cell_type == "markdown" else [cell.source]
        for part, next_heading in zip(parts[::2], [*parts[1::2], None], strict=True):
            outputs = " ".join(output_texts(cell)) if cell.cell_type == "code" else ""
            seen, printed = found.get(heading, ("", ""))
            found[heading] = (f"{seen} {part} {outputs}", f"{printed} {outputs}")
            heading = next_heading or heading
    return found


def comparable(text: str) -> str:
    """In lower case, every number as 0, every gap as one space: what differs from run to run does not count."""
    return re.sub(r"\d+", "0", " ".join(text.lower().split()))


def section(label: str, notebook: str) -> tuple[str, str] | None:
    """The section of a link: [11.5](...) has its number, [11b, What could go wrong](...) its heading."""
    for heading, texts in sections(notebook).items():
        number_and_name = f"{notebook.split('_')[0]}, {heading}"
        if heading.split(" ")[0] == label or number_and_name == label:
            return texts
    return None


def terms(message: str, text: str) -> list[str]:
    """What the explaining section has to speak of: the message, or a name in code, of which one is enough."""
    return [message, *re.findall(r"`([^`]+)`", text), *re.findall(r"\w+_\w+|[A-Z]\w*[a-z][A-Z]\w*", message)]


def problems(message: str, text: str) -> list[str]:
    found, places = [], list(PLACES.finditer(text))
    if "**First:**" not in text:
        found.append("it does not say what to do first")
    if not places and not ELSEWHERE.search(text):
        found.append("it names no section, and does not say that none runs it")
    for place in places:
        for label, notebook in re.findall(LINK, place[2]):
            if not (NOTEBOOKS / notebook).exists() or (texts := section(label, notebook)) is None:
                found.append(f"there is no section {label} in {notebook}")
                continue
            seen, printed = map(comparable, texts)
            is_printed = comparable(message) in printed
            if place[1].lower() == "shown" and not is_printed:
                found.append(f"section {label} does not print it; it may explain it")
            elif place[1].lower() == "explained" and is_printed:
                found.append(f"section {label} prints it: say shown")
            elif place[1].lower() == "explained" and not any(comparable(term) in seen for term in terms(message, text)):
                found.append(f"section {label} has neither the message nor any name of the entry")
    return found


@pytest.mark.parametrize("message", ENTRIES)
def test_an_entry_leads_to_a_section_that_has_it(message):
    assert problems(message, ENTRIES[message]) == []


def test_there_are_at_least_sixty_messages_and_each_heading_is_parsed():
    headings = re.findall(r"^### (?!Without a message$).+", Path(NOTEBOOKS / "symptoms.md").read_text(), re.MULTILINE)
    assert len(ENTRIES) == len(headings) >= 60


@pytest.mark.parametrize(
    ("message", "text", "problem"),
    [
        ("Timed out waiting 5ms", "**First:** look. Shown in [11.1](11_failures_that_hang.ipynb).", None),
        ("Timed out waiting 5ms", "Shown in [11.1](11_failures_that_hang.ipynb).", "what to do first"),
        ("Timed out waiting 5ms", "**First:** look.", "names no section"),
        ("Timed out waiting 5ms", "**First:** look. Shown in [11.5](11_failures_that_hang.ipynb).", "does not print it"),
        ("Timed out waiting 5ms", "**First:** look. Explained in [11.1](11_failures_that_hang.ipynb).", "say shown"),
        ("Timed out waiting 5ms", "**First:** look. Shown in [11.99](11_failures_that_hang.ipynb).", "no section 11.99"),
        ("Timed out waiting 5ms", "**First:** look. Shown in [11.1](11_no_such.ipynb).", "no section 11.1"),
        ("xyzzy", "**First:** look. Explained in [11.1](11_failures_that_hang.ipynb).", "neither the message nor"),
    ],
)
def test_a_wrong_entry_is_named(message, text, problem):
    found = problems(message, text)
    assert (problem is None and not found) or (problem and problem in found[0])
