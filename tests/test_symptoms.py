"""The index of messages: a section that shows a message prints it; a section that explains it names it."""

import re
from functools import cache

import pytest

from ddp_course.authoring import commands as authoring
from ddp_course.authoring.notebook_run import output_texts, read_notebook

pytestmark = pytest.mark.smoke

NOTEBOOKS = authoring.ROOT / "notebooks"
PAGE = (NOTEBOOKS / "symptoms.md").read_text(encoding="utf-8")
CHEAT_SHEET = (NOTEBOOKS / "cheat_sheet.md").read_text(encoding="utf-8")
ENTRY = re.compile(r"^### (`+) ?(.+?) ?\1\n\n(.+?)(?=\n#|\n\||\Z)", re.MULTILINE | re.DOTALL)
LINK = r"\[([^\]]+)\]\((\w+\.ipynb)\)"
REFERENCE = re.compile(rf"\b(shown|explained) in ({LINK}(?:(?:, | and ){LINK})*)", re.IGNORECASE)
NO_SECTION = re.compile(r"(No section runs it|The text needs GPUs)\b")
ENTRIES = {message: text for _, message, text in ENTRY.findall(PAGE)}


@cache
def sections(notebook: str) -> dict[str, list[str]]:
    """Heading -> [all text and outputs of the section, its outputs only]."""
    texts, heading = {}, ""
    for cell in read_notebook(NOTEBOOKS / notebook).cells:
        pieces = [cell.source]
        if cell.cell_type == "markdown":
            pieces = re.split(r"^(?=## )", cell.source, flags=re.MULTILINE)
        outputs = " ".join(output_texts(cell)) if cell.cell_type == "code" else ""
        for piece in pieces:
            if cell.cell_type == "markdown" and piece.startswith("## "):
                heading = piece.splitlines()[0].removeprefix("## ")
            section = texts.setdefault(heading, ["", ""])
            section[0] += f" {piece} {outputs}"
            section[1] += f" {outputs}"
    return texts


def comparable(text: str) -> str:
    """The text in lower case, with every number as 0 and every gap as one space, which differ from run to run."""
    return re.sub(r"\d+", "0", " ".join(text.lower().split()))


def texts_of(label: str, notebook: str) -> list[str]:
    """The section of a link: [11.5](...) has its number, [11b, What could go wrong](...) its heading."""
    if not (NOTEBOOKS / notebook).exists():
        return []
    for heading, texts in sections(notebook).items():
        if label in (heading.split(" ")[0], f"{notebook.split('_')[0]}, {heading}"):
            return texts
    return []


def terms(message: str, text: str) -> list[str]:
    """The message and the names in code in its entry, of which an explaining section has at least one."""
    return [message, *re.findall(r"`([^`]+)`", text), *re.findall(r"\w+_\w+|[A-Z]\w*[a-z][A-Z]\w*", message)]


def problems(message: str, text: str) -> list[str]:
    if "**First:**" not in text:
        return ["it does not say what to do first"]
    references = [
        (reference[1].lower(), *link)
        for reference in REFERENCE.finditer(text)
        for link in re.findall(LINK, reference[2])
    ]
    if not references and not NO_SECTION.search(text):
        return ["it names no section, and does not say that none runs it"]
    faults = []
    for how, label, notebook in references:
        whole, printed = map(comparable, texts_of(label, notebook) or ["", ""])
        if not whole:
            faults.append(f"there is no section {label} in {notebook}")
        elif how == "shown" and comparable(message) not in printed:
            faults.append(f"section {label} does not print it; it may explain it")
        elif how == "explained" and comparable(message) in printed:
            faults.append(f"section {label} prints it: say shown")
        elif how == "explained" and not any(comparable(term) in whole for term in terms(message, text)):
            faults.append(f"section {label} has neither the message nor a name of the entry")
    return faults


@pytest.mark.parametrize("message", ENTRIES)
def test_an_entry_leads_to_a_section_that_has_it(message):
    assert problems(message, ENTRIES[message]) == []


PRACTICES = re.findall(
    r"^\| (.+?) \| (.+?) \| (.+?) \|$", CHEAT_SHEET.split("## Good practice")[1].split("## ")[0], re.MULTILINE
)[2:]


def problem_of_practice(by: str, proved: str) -> str:
    """A command is proved where one of its names stands in the section; where it has none, the section exists."""
    label, notebook = re.fullmatch(LINK, proved).groups()
    texts = texts_of(label, notebook)
    code = " ".join(re.findall(r"`([^`]+)`", by))
    names = set(re.findall(r"[A-Za-z_][\w-]{5,}", code)) - {"torchrun", "python", "standalone"}
    if not texts:
        return f"there is no section {label} in {notebook}"
    if names and not any(name.lower() in texts[0].lower() for name in names):
        return f"section {label} of {notebook} has none of {sorted(names)}"
    return ""


@pytest.mark.parametrize(("do", "by", "proved"), PRACTICES)
def test_a_practice_leads_to_the_section_that_proves_it(do, by, proved):
    assert problem_of_practice(by, proved) == ""


def test_a_practice_without_its_section_is_named():
    assert len(PRACTICES) >= 12
    assert "no section 5.9" in problem_of_practice("`SeedSequence`", "[5.9](05_sharding_data.ipynb)")
    assert "has none of" in problem_of_practice("`no_such_name`", "[5.2](05_sharding_data.ipynb)")


def test_there_are_at_least_sixty_messages_and_every_heading_is_read():
    headings = re.findall(r"^### (?!.* without a message$)", PAGE, re.MULTILINE)
    assert len(ENTRIES) == len(headings) >= 60


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Shown in [11.1](11_failures_that_hang.ipynb).", "what to do first"),
        ("**First:** look.", "names no section"),
        ("**First:** look. Shown in [11.5](11_failures_that_hang.ipynb).", "does not print it"),
        ("**First:** look. Explained in [11.1](11_failures_that_hang.ipynb).", "say shown"),
        ("**First:** look. Explained in [11.5](11_failures_that_hang.ipynb).", "neither the message"),
        ("**First:** look. Shown in [11.99](11_failures_that_hang.ipynb).", "no section 11.99"),
        ("**First:** look. Shown in [11.1](11_no_such.ipynb).", "no section 11.1"),
    ],
)
def test_a_wrong_entry_is_named(text, problem):
    message = "Timed out waiting 5ms for recv operation"
    assert problems(message, "**First:** look. Shown in [11.1](11_failures_that_hang.ipynb).") == []
    assert problem in problems(message, text)[0]
