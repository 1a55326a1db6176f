"""Every notebook is built alike, its outputs belong to its code, and its prose keeps the course's tone.

`problems` lists what is wrong with one notebook. The tests below the first show that each rule can be broken.
"""

import ast
import json
import re
import statistics
import symtable
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from ddp_course.authoring import commands as authoring
from ddp_course.authoring.notebook_run import code_hash, is_fresh, notebook_text, output_texts, read_notebook
from ddp_course.authoring.reading_time import STATED, reading_time
from ddp_course.authoring.setup_cell import lesson_cells, put_setup_cell

pytestmark = pytest.mark.smoke

NOTEBOOKS = authoring.select(authoring.ROOT, ("notebooks", "solutions"), [])
LARGEST_BYTES = 1_000_000
MEDIAN_LINES, LONGEST_CELL, LONGEST_SCRIPT = 8, 40, 80
LONGEST_GROWN = 200  # scripts/train_NN.py, which grows from notebook 01 to 09
LONGEST_GRPO = 90  # scripts/19_grpo.py, a whole algorithm on one page
MOST_CELLS, MOST_WORDS, FEWEST_LINKS = 45, 1500, 3  # of a notebook of the spine
NEVER = re.compile(r"\b(simply|obviously)\b", re.IGNORECASE)
JUST_AS_FILLER = re.compile(
    r"(?<!has )(?<!have )(?<!had )(?<!been )\bjust (use|run|add|call|do|write|type|copy|make|import|open|needs?|want|"
    r"works?|remember|pass|follow|change|install|click|try|one more|a matter|like that)\b",
    re.IGNORECASE,
)
LEDGER_NAME = re.compile(r"\bseed \d{3}\b|\bB\d{1,2}\b")
SHOWN = re.compile(r"^(ddp_course/\S+\.py)\b.*\n((?: *\d+(?:  .*)?(?:\n|$))+)", re.MULTILINE)  # by show_source
QUESTION = re.compile(r"^\*\*Question\.\*\* (?:.+\n)+\n(?:<details>.*</details>(?:\n|$))+", re.MULTILINE)
CHOICE = re.compile(r"^<details><summary>(.+)</summary>(.*)</details>$", re.MULTILINE)
MARKDOWN = re.compile(r"`|\*\*\S.*\*\*|\]\(")  # inside of HTML it is not rendered
COMPARES = re.compile(  # a sentence that compares measured things: a comparing word, and a number or this run
    r"(?=.*(?:\d|\bhere\b|\bthis machine\b|\bmeasured\b|\babove\b)).*"
    r"\b(?:faster|slower|quicker|cheaper|less|fewer|more|larger|smaller|higher|lower|longer|shorter|better|worse|equal|"
    r"equally|identical|the same \w+ as|(?:as|half|times) as|as (?:much|many|large|long|fast|often) as|times)\b"
    r"|.*\btwice (?:as|what)\b",
    re.IGNORECASE,
)
NUMBERED = re.compile(r"(?:notebooks?|exercises?|sections?|torch|PyTorch|Python) \d[\d.a-z]*", re.IGNORECASE)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)|(?:href|src)=\"([^\"]+)\"")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_notebook_anatomy(path):
    faults = problems(path)
    if faults:
        pytest.fail(f"{path.parent.name}/{path.name}:\n  " + "\n  ".join(faults), pytrace=False)


# ---- the rules ---------------------------------------------------------------------------------------------------


def problems(path: Path) -> list[str]:
    """The faults of the notebook at `path`, one sentence each. Solutions need no lesson's sections."""
    nb = read_notebook(path)
    ids = [cell.id for cell in nb.cells]
    faults = [*gets_the_course_first(nb, path)]
    nb.cells = [cell for cell in nb.cells if cell.id != "course-links"]  # there once the repository has an address
    faults += [*outputs_belong_to_code(nb), *shown_source_is_the_packages(nb), *cells_are_short_and_introduced(nb)]
    faults += [*parameters_cell(nb), *tone(nb), *links_resolve(nb, path), *title_and_promise(nb)]
    faults += [*loads_run_no_code(nb), *predictions_are_the_readers(nb)]
    if path.parent.name == "notebooks":
        faults += [*header_box(nb), *sections(nb, path), *pages_at_the_end(nb)]
        faults += [*read_in_one_sitting(nb, path), *leads_on(nb, path), *questions(nb, path)]
        faults += [*comparisons_are_asserted(nb), *predictions_can_be_made_again(nb)]
    if path.stat().st_size > LARGEST_BYTES:
        faults.append(f"the file has {path.stat().st_size:,} bytes; the limit is {LARGEST_BYTES:,}")
    on_disk = [cell.get("id") for cell in json.loads(path.read_text())["cells"]]
    if on_disk != ids:
        faults.append("a cell has no id, or another cell's; run: make notebooks")
    return faults


def is_spine(path: Path) -> bool:
    """Whether the number in the name has no letter: NN_topic, not NNb_topic."""
    return bool(re.match(r"\d\d_", path.stem))


def label(nb, cell) -> str:
    return f"cell {[other.id for other in nb.cells].index(cell.id) + 1}"


def code_cells(nb) -> list:
    return [cell for cell in lesson_cells(nb) if cell.cell_type == "code"]


def outputs_belong_to_code(nb):
    if not is_fresh(nb):
        yield "the code has changed since the outputs were written; run: make notebooks"
    for number, cell in enumerate(code_cells(nb), start=1):
        if cell.execution_count != number:
            yield f"{label(nb, cell)} has execution count {cell.execution_count}, expected {number}: not run in one go"
        if any(output.output_type == "error" for output in cell.outputs):
            yield f"{label(nb, cell)} shows an error; a lesson about an error catches and prints it"
        if "injected-parameters" in cell.metadata.get("tags", []):
            yield f"{label(nb, cell)} is papermill's injected cell; only `make notebooks` writes outputs"
        if prints(cell.source) and not cell.outputs:
            yield f"{label(nb, cell)} prints, but has no output"
        for folder in re.findall(r"(?<![\w.-])(?:/home|/Users|/root)/[\w.-]+", "\n".join(output_texts(cell))):
            yield f"{label(nb, cell)} shows {folder}, a path of its author's machine"


def gets_the_course_first(nb, path):
    """The same cell in every notebook, so that each of them can be opened by itself on Colab or Kaggle."""
    right = nbformat.from_dict(nb)
    put_setup_cell(right, authoring.ROOT, path)
    if notebook_text(right) != notebook_text(nb):
        yield "its first code cell does not get the course; run: python -m ddp_course.authoring setup"


def shown_source_is_the_packages(nb):
    """Its lines are in the file, one after the other; their numbers may have changed."""
    for cell in code_cells(nb):
        for output in cell.outputs:
            for name, listing in SHOWN.findall(output.get("data", {}).get("text/plain", "")):
                shown = [re.sub(r"^ *\d+(  )?", "", line) for line in listing.splitlines()]
                file = authoring.ROOT / name
                there = [line.rstrip() for line in file.read_text().splitlines()] if file.exists() else []
                if "\n".join(["", *shown, ""]) not in "\n".join(["", *there, ""]):
                    yield f"{label(nb, cell)} shows lines that {name} no longer has; run: make notebooks"


def predictions_can_be_made_again(nb):
    """A reader answers after a full run and runs again from there: no cell may then read what a later cell bound."""
    cells = [cell for cell in code_cells(nb) if not cell.source.startswith("%%")]
    names = [names_of(cell.source) for cell in cells]
    for start, predicts in enumerate(cells):
        if "= predict(" not in predicts.source:
            continue
        for number in range(start, len(cells)):
            bound_here, read, _ = names[number]
            for name in sorted(read - bound_here):
                earlier = [other for other in range(number) if name in names[other][0] | names[other][2]]
                taken_later = any(name in bound for bound, _, _ in names[number + 1 :])
                if earlier and earlier[-1] < start and taken_later:
                    yield f"{label(nb, cells[number])} finds another {name!r} when it runs again after the last cell"


def names_of(source: str) -> tuple[set[str], set[str], set[str]]:
    """The names that a cell binds, that it reads, and that it imports."""
    table = symtable.symtable(source, "cell", "exec")
    imported = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_imported()}
    bound = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_namespace()} - imported
    tables, read = [table], set()
    while tables:
        scope = tables.pop()
        tables += scope.get_children()
        read |= {s.get_name() for s in scope.get_symbols() if s.is_referenced() and (scope is table or s.is_global())}
    return bound, read, imported


def loads_run_no_code(nb):
    """torch.load gets weights_only=True where a reader may copy it: before torch 2.6 the default was False."""
    for cell in code_cells(nb):
        for line in careless_loads(cell.source):
            yield f"{label(nb, cell)} loads without weights_only=True: {line}"


def careless_loads(source: str) -> list[str]:
    return [line.strip() for line in source.splitlines() if "torch.load(" in line and "weights_only=True" not in line]


def test_nothing_that_a_learner_reads_loads_what_can_run_code():
    """In the package and the solutions, from which the exercises are made; the notebooks have a rule of their own."""
    paths = [path for folder in ("ddp_course", "solutions") for path in (authoring.ROOT / folder).rglob("*.py")]
    loads = {str(path): careless_loads(path.read_text()) for path in paths if path.name != "wrong.py"}
    assert loads
    assert not {path: lines for path, lines in loads.items() if lines}


def parsed(source: str) -> ast.Module:
    """The syntax of a cell, without its magics."""
    return ast.parse("\n".join("pass" if line.startswith(("%", "!")) else line for line in source.splitlines()))


def prints(source: str) -> bool:
    """Whether a cell surely prints when it runs: a print(...) that is a statement of its own at the top level."""
    try:
        body = parsed(source).body
    except SyntaxError:
        return False
    calls = [node.value.func for node in body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    return not source.startswith("%%") and any(isinstance(call, ast.Name) and call.id == "print" for call in calls)


def cells_are_short_and_introduced(nb):
    lengths = []
    for previous, cell in zip([None, *lesson_cells(nb)], lesson_cells(nb), strict=False):
        if cell.cell_type != "code":
            continue
        if previous is None or previous.cell_type != "markdown" or not previous.source.strip():
            yield f"{label(nb, cell)} has no markdown before it"
        lines = len(cell.source.splitlines()) - cell.source.startswith("%%writefile")
        lengths.append(lines)
        if lines > most_lines(cell.source):
            yield f"{label(nb, cell)} has {lines} lines of code; the limit is {most_lines(cell.source)}"
        if lines == 0:
            yield f"{label(nb, cell)} is empty"
    if lengths and statistics.median(lengths) > MEDIAN_LINES:
        yield f"the median code cell has {statistics.median(lengths):g} lines; the limit is {MEDIAN_LINES}"


def most_lines(source: str) -> int:
    """The limit for the lines of a code cell."""
    if re.match(r"%%writefile scripts/train_\d\d\.py\s", source):
        return LONGEST_GROWN
    if source.startswith("%%writefile scripts/19_grpo.py\n"):
        return LONGEST_GRPO
    return LONGEST_SCRIPT if source.startswith("%%writefile") else LONGEST_CELL


def parameters_cell(nb):
    tagged = [cell for cell in code_cells(nb) if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1:
        yield f"{len(tagged)} cells are tagged `parameters`, expected 1"
        return
    for_tests = nb.metadata.get("ddp_course", {}).get("test_parameters")
    if for_tests is None:
        yield "metadata ddp_course.test_parameters is missing; {} if the reading parameters are fast enough"
        return
    assigned, _, _ = names_of(tagged[0].source)
    for name in sorted(set(for_tests) - assigned):
        yield f"test parameter {name} is not assigned in the parameters cell ({label(nb, tagged[0])})"


def title_and_promise(nb):
    first = nb.cells[0] if nb.cells and nb.cells[0].cell_type == "markdown" else None
    lines = [line.strip() for line in first.source.splitlines() if line.strip()] if first else []
    if not lines or not lines[0].startswith("# "):
        yield "the first cell does not start with a title (# ...)"
    elif len(lines) < 2 or lines[1].startswith(("#", "|", "<", ">", "-")) or not re.search(r"[.?]", lines[1]):
        yield "below the title there is no sentence that says what the notebook promises"


def header_box(nb):
    head = "\n".join(cell.source for cell in nb.cells[:2] if cell.cell_type == "markdown")
    for part in ("you will be able to", "needs", "runs in", "hardware"):
        if part not in head.lower():
            yield f"the header box (first two cells) does not say {part!r}"
    measured = authoring.MEASURED.search(head)
    if not measured:
        yield "the header box has no '<!-- measured --> <!-- /measured -->' for `make notebooks` to fill"
    elif {"seconds", "machine"} <= set(nb.metadata.get("ddp_course", {})):
        expected = measured[1] + authoring.measured_text(nb.metadata.ddp_course) + measured[2]
        if measured[0] != expected:
            yield f"the header box says {measured[0]!r}, the last run gave {expected!r}"


def sections(nb, path):
    name = re.match(r"(\d\d)([a-z]?)_", path.stem)
    if name is None:
        yield "the file name does not start with two digits (a letter for a deep dive) and an underscore"
        return
    number = f"{int(name[1])}{name[2]}"
    text = "\n\n".join(without_code(cell.source) for cell in nb.cells if cell.cell_type == "markdown")
    headings = [line[3:].strip() for line in text.splitlines() if line.startswith("## ")]
    numbered = [heading for heading in headings if re.match(r"\d", heading)]
    if not numbered:
        yield f"there is no numbered section (## {number}.1 ...)"
    for position, heading in enumerate(numbered, start=1):
        if not heading.startswith(f"{number}.{position} "):
            yield f"section {heading!r} should be numbered {number}.{position}"
    if "what could go wrong" not in text.lower():
        yield "there is no 'What could go wrong'"
    if not re.search(r"^(#+ |>? ?\*\*)[^\n]*summary", text, re.IGNORECASE | re.MULTILINE):
        yield "there is no summary (a heading or bold word 'Summary')"
    exercise = path.parents[1] / "exercises" / path.name
    for_number = sorted(exercise.parent.glob(f"{name[1]}_*.ipynb"))
    if for_number and not name[2] and not any(f"../exercises/{there.name}" in text for there in for_number):
        yield f"there is no link to ../exercises/{for_number[0].name}"


def read_in_one_sitting(nb, path):
    """A notebook of the spine is short, one with a letter (NNb, NNc) may be long; each says how long reading takes."""
    stated, counted = STATED.search(nb.cells[0].source), reading_time(nb)
    if not stated or stated[0] != counted:
        yield f"the header box does not say '**Reading time** {counted}'"
    # The questions are left out: of the folded words a reader opens as many as they like.
    words = sum(len(QUESTION.sub("", cell.source).split()) for cell in nb.cells if cell.cell_type == "markdown")
    count = len(lesson_cells(nb))
    if is_spine(path) and (count > MOST_CELLS or words > MOST_WORDS):
        yield (
            f"{count} cells and {words} words; a notebook of the spine has at most {MOST_CELLS} and "
            f"{MOST_WORDS}: move a subject of its own to a deep dive"
        )


def questions(nb, path):
    """Most sections of the spine end with a question; one choice is right, and the others say what they overlook."""
    text = "\n\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    sections = [part for part in re.split(r"^## ", text, flags=re.MULTILINE) if re.match(r"\d", part)]
    asked = [part for part in sections if "**Question.**" in part]
    if is_spine(path) and 2 * len(asked) < len(sections):
        yield f"{len(asked)} of {len(sections)} sections end with a question (see CONTRIBUTING.md), expected half"
    for part in asked:
        name = part.splitlines()[0]
        question = QUESTION.search(part)
        if question is None or part[question.end() :].strip():
            yield f"section {name!r} does not end with its question, two or three lines of <details> right below it"
            continue
        choices = CHOICE.findall(question[0])
        if not 2 <= len(choices) <= 3 or question[0].count("<details>") != len(choices):
            yield f"the question of section {name!r} has {len(choices)} well-formed choices, expected 2 or 3"
        right = sum(explained.startswith("Right:") for _choice, explained in choices)
        if right != 1:
            yield f"the question of section {name!r} has {right} choices marked 'Right:', expected 1"
        for line in question[0].splitlines():
            if line.startswith("<details>") and MARKDOWN.search(line):
                yield f"the question of section {name!r} has Markdown inside of HTML, which shows it as it is: {line}"
        if any(len(explained.split()) < 3 for _choice, explained in choices):
            yield f"the question of section {name!r} has a choice that says nothing of what it overlooks"


def comparisons_are_asserted(nb):
    """A sentence that compares what was measured stands after a cell of its section that asserts something.

    Looked at are the sentences after the first run of a section: with a comparing word, and with a number or a word for
    this run. Which inequality the cell asserts is for a reviewer to judge.
    """
    ran = asserted = False
    for cell in nb.cells:
        if cell.cell_type == "code":
            ran = ran or not cell.source.startswith("%%writefile")
            asserted = asserted or asserts(cell.source)
            continue
        for part in re.split(r"^(?=##)", cell.source, flags=re.MULTILINE):
            if part.startswith("## "):
                ran = asserted = False
            for sentence in sentences(part) if ran and not asserted else []:
                if COMPARES.match(NUMBERED.sub("", sentence)):
                    yield f"{label(nb, cell)} compares, and no cell of its section has asserted anything: {sentence!r}"


def sentences(markdown: str) -> list[str]:
    """The statements of a markdown cell: no headings, tables, questions, or sentences that lead to the cell below."""
    prose = re.sub(r"\]\([^)]*\)", "]", without_code(QUESTION.sub("", markdown)))
    prose = "\n".join(line for line in prose.splitlines() if not line.startswith(("#", "|", ">")))
    pieces = (" ".join(piece.split()) for piece in re.split(r"(?<=[.?:])\s|\n\n|^- ", prose, flags=re.MULTILINE))
    return [sentence for sentence in pieces if sentence and not sentence.endswith(("?", ":"))]


def asserts(source: str) -> bool:
    """Whether a cell asserts: an assert, in it or in the script that it writes, or a call of an assert_... function."""
    nodes = list(ast.walk(parsed(source)))
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    names = [getattr(function, "id", getattr(function, "attr", "")) for function in called]
    return any(isinstance(node, ast.Assert) for node in nodes) or any(name.startswith("assert") for name in names)


def predictions_are_the_readers(nb):
    """A prediction that comes with a number is the author's."""
    for cell in code_cells(nb):
        for node in ast.walk(parsed(cell.source)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "predict":
                default = {keyword.arg: keyword.value for keyword in node.keywords}.get("default")
                if not (isinstance(default, ast.Constant) and default.value is None):
                    yield f"{label(nb, cell)}: a prediction starts with default=None; the number is the reader's"


def leads_on(nb, path):
    """The last cell links to the next notebook (a deep dive: back), and the whole notebook to the outside."""
    text = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    if not re.search(r"\(\d\d_\w+\.ipynb\)", nb.cells[-1].source):
        yield "the last cell does not link to the next notebook"
    outside = len(set(re.findall(r"\]\((https://[^)\s]+)\)", text)))
    if is_spine(path) and outside < FEWEST_LINKS:
        yield f"{outside} outside links; at least {FEWEST_LINKS} help a reader further"


def pages_at_the_end(nb):
    for page in ("cheat_sheet.md", "glossary.md"):
        if f"]({page})" not in nb.cells[-1].source:
            yield f"the last cell does not link to {page}"


def without_code(markdown: str) -> str:
    """The prose of a markdown cell: no code, no formula, no HTML tag or comment."""
    for pattern in (r"```.*?```", r"<!--.*?-->", r"\$\$.*?\$\$", r"`[^`\n]*`", r"\$[^$\n]*\$", r"</?\w[^>]*>"):
        markdown = re.sub(pattern, "", markdown, flags=re.DOTALL)
    return markdown.replace("![", "[")


def tone(nb):
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            prose = without_code(cell.source)
            for pattern, why in (
                (NEVER, "a word that tells the reader how easy it should be"),
                (JUST_AS_FILLER, "'just' as filler"),
                (re.compile(r"[^\n]{0,30}!"), "an exclamation mark"),
            ):
                for match in pattern.finditer(prose):
                    yield f"{label(nb, cell)}: {why}: {match[0].strip()!r}"
        for match in LEDGER_NAME.finditer(cell.source):
            yield f"{label(nb, cell)}: {match[0]!r}: name a bug by what it does and a source by what it says"


def links_resolve(nb, path):
    for cell in nb.cells:
        if cell.cell_type != "markdown":
            continue
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", cell.source, flags=re.DOTALL)
        for match in LINK.finditer(prose):
            target = (match[1] or match[2]).partition("#")[0]
            is_local = target and not re.match(r"[a-z]+:", target)
            if is_local and not (path.parent / target).exists():
                yield f"{label(nb, cell)}: the link to {target} leads nowhere"


# ---- each rule can be broken -------------------------------------------------------------------------------------

HEADER = """# Two ranks

Two processes find each other, in ten lines.

> **You will be able to** start, name and stop a rank
> **Needs** nothing · **Reading time** 5 minutes ·
> **Runs in** <!-- measured -->**about 5 s** on 2 cores, no GPU<!-- /measured --> ·
> **Hardware** any
"""
ASKED = """**Question.** Who speaks first?

<details><summary>rank 0</summary>No rank waits for another.</details>
<details><summary>any rank</summary>Right: nothing orders them.</details>"""
TEXTS = [
    f"## 4.1 Who is there?\n\nEvery rank just said so: `5!` and $n!$ and ![one](../README.md).\n\n{ASKED}",
    f"## 4.2 And then?\n\n{ASKED}",
]
LINKS = " ".join(f"[{n}](https://example.org/{n})" for n in range(3))
END = f"## What could go wrong\n\nA rank dies. {LINKS}\n\n## Summary\n\n[Exercise](../exercises/04_tiny.ipynb)"
END += "\n\nNext: [three](01_tiny.ipynb)\n\n[Cheat sheet](cheat_sheet.md) [Glossary](glossary.md)"


@pytest.fixture
def course(tmp_path):
    """A course folder with the files that the good notebook links to."""
    pages = [f"notebooks/{page}" for page in ("01_tiny.ipynb", "cheat_sheet.md", "glossary.md")]
    for name in ("README.md", "exercises/04_tiny.ipynb", *pages):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def good_path(course):
    """The path of a notebook that keeps every rule."""
    assert problems_after(course) == []
    return course / "notebooks" / "04_tiny.ipynb"


def good_notebook():
    nb = nbformat.v4.new_notebook()
    nb.cells = [
        new_markdown_cell(HEADER),
        new_code_cell("STEPS = 3", metadata={"tags": ["parameters"]}),
        new_markdown_cell(TEXTS[0]),
        new_code_cell("%%writefile scripts/03_one.py\nx = 1", outputs=[new_output("stream", text="Writing\n")]),
        new_markdown_cell(TEXTS[1]),
        new_code_cell("print(STEPS)", outputs=[new_output("stream", text="3\n")]),
        new_markdown_cell(END),
    ]
    for number, cell in enumerate(nb.cells):
        cell.id = f"c{number}"
    for count, cell in enumerate(code_cells(nb), start=1):
        cell.execution_count = count
    nb.metadata["ddp_course"] = {"test_parameters": {"STEPS": 1}, "seconds": 4.2, "machine": "2 cores, no GPU"}
    return nb


def problems_after(course, change=lambda nb: None, name="notebooks/04_tiny.ipynb", stamp=True):
    nb = good_notebook()
    change(nb)
    path = course / name
    put_setup_cell(nb, authoring.ROOT, path)
    if stamp:
        nb.metadata.ddp_course["code_hash"] = code_hash(nb)
    path.parent.mkdir(exist_ok=True)
    path.write_text(notebook_text(nb))
    return problems(path)


def set_source(index, source):
    return lambda nb: nb.cells[index].update(source=source)


def edit(index, old, new):
    return lambda nb: nb.cells[index].update(source=nb.cells[index].source.replace(old, new))


def set_cell(index, **fields):
    return lambda nb: nb.cells[index].update(**fields)


def show(code):
    return new_output("display_data", data={"text/plain": f"ddp_course/base/errors.py · InputError\n4  {code}"})


BROKEN = {
    "no outputs": (set_cell(5, outputs=[]), "cell 7 prints, but has no output"),
    "error output": (set_cell(5, outputs=[new_output("error", ename="E", evalue="", traceback=[])]), "shows an error"),
    "author's path": (set_cell(5, outputs=[new_output("stream", text="in /home/ann/x")]), "shows /home/ann"),
    "stale source": (set_cell(5, outputs=[show("def hook(): pass")]), "shows lines that ddp_course/base/errors.py"),
    "run out of order": (set_cell(5, execution_count=9), "execution count 9, expected 3"),
    "injected cell": (set_cell(5, metadata={"tags": ["injected-parameters"]}), "papermill's injected cell"),
    "careless load": (set_source(5, "s = torch.load(path)"), "without weights_only=True: s = torch.load(path)"),
    "code after code": (lambda nb: nb.cells.pop(4), "cell 6 has no markdown before it"),
    "empty cell": (set_source(5, ""), "cell 7 is empty"),
    "long cell": (set_source(5, "x = 1\n" * 41), "41 lines of code; the limit is 40"),
    "long script": (set_source(3, "%%writefile scripts/a.py\n" + "x = 1\n" * 81), "81 lines of code; the limit is 80"),
    "long median": (lambda nb: [c.update(source="x = 1\n" * 9) for c in code_cells(nb)], "the median code cell has 9"),
    "no parameters": (set_cell(1, metadata={}), "0 cells are tagged `parameters`"),
    "two parameters": (set_cell(5, metadata={"tags": ["parameters"]}), "2 cells are tagged `parameters`"),
    "unknown test parameter": (set_source(1, "STEP = 3"), "test parameter STEPS is not assigned"),
    "no test parameters": (lambda nb: nb.metadata.ddp_course.pop("test_parameters"), "test_parameters is missing"),
    "no title": (edit(0, "# Two", "Two"), "does not start with a title"),
    "no promise": (edit(0, "Two processes find each other, in ten lines.", ""), "what the notebook promises"),
    "no goals": (edit(0, "You will be able to", "Goals:"), "'you will be able to'"),
    "no hardware": (edit(0, "Hardware", "Machine"), "'hardware'"),
    "no measured mark": (edit(0, "<!-- measured -->", ""), "for `make notebooks` to fill"),
    "time typed by hand": (edit(0, "about 5 s", "about 1 s"), "the last run gave"),
    "wrong number": (edit(2, "4.1", "5.1"), "should be numbered 4.1"),
    "gap in numbers": (edit(4, "4.2", "4.3"), "should be numbered 4.2"),
    "no sections": (lambda nb: [nb.cells[i].update(source="text") for i in (2, 4)], "no numbered section"),
    "no dangers": (edit(6, "What could go wrong", "Dangers"), "'What could go wrong'"),
    "no summary": (edit(6, "Summary", "End"), "no summary"),
    "no cheat sheet": (edit(6, "(cheat_sheet.md)", "(01_tiny.ipynb)"), "does not link to cheat_sheet.md"),
    "no exercise link": (edit(6, "../exercises/04_tiny.ipynb", "../README.md"), "no link to ../exercises/04_tiny"),
    "dead link": (edit(6, "../exercises/04_tiny.ipynb", "../exercises/04_none.ipynb"), "04_none.ipynb leads nowhere"),
    "simply": (set_source(4, "## 4.2 Simply put"), "'Simply'"),
    "obviously": (set_source(4, "## 4.2 B\n\nIt is obviously so."), "'obviously'"),
    "just": (set_source(4, "## 4.2 B\n\nNow just run it."), "'just run'"),
    "exclamation": (set_source(4, "## 4.2 B\n\nIt works!"), "exclamation mark"),
    "ledger name": (set_source(5, "print(STEPS)  # B26"), "'B26'"),
    "source name": (set_source(4, "## 4.2 B\n\nAs in seed 001."), "'seed 001'"),
    "no reading time": (edit(0, "**Reading time** 5 minutes ·", ""), "does not say '**Reading time** 5 minutes'"),
    "too many words": (set_source(4, "## 4.2 B\n\n" + "word " * 1500), "at most 45 and 1500"),
    "too many cells": (lambda nb: nb.cells.extend(new_markdown_cell("x", id=f"m{n}") for n in range(40)), "47 cells"),
    "no questions": (lambda nb: [edit(i, ASKED, "")(nb) for i in (2, 4)], "0 of 2 sections end with a question"),
    "text after a question": (edit(2, ASKED, f"{ASKED}\n\nAnd so on."), "does not end with its question"),
    "a question unfolded": (edit(2, "<details>", "- "), "does not end with its question"),
    "one choice": (edit(2, ASKED.splitlines()[2] + "\n", ""), "has 1 well-formed choices"),
    "no right choice": (edit(2, "Right: ", ""), "0 choices marked 'Right:'"),
    "two right choices": (edit(2, "No rank", "Right: no rank"), "2 choices marked 'Right:'"),
    "a choice without a reason": (edit(2, "No rank waits for another.", "No."), "says nothing of what it overlooks"),
    "Markdown in a choice": (edit(2, "nothing orders", "`barrier` orders"), "Markdown inside of HTML"),
    "a name taken later": (
        lambda nb: [
            edit(1, "STEPS = 3", "STEPS = 3\nrun = 1")(nb),
            set_source(3, "said = predict('?', default=None)\nprint(run)")(nb),
            set_source(5, "run = 2")(nb),
        ],
        "cell 5 finds another 'run' when it runs again",
    ),
    "the author's number": (set_source(5, "predict('how many?', default=3)"), "the number is the reader's"),
    "no next notebook": (edit(6, "Next: [three](01_tiny.ipynb)", ""), "does not link to the next notebook"),
    "few links": (edit(6, LINKS, ""), "0 outside links"),
    "too large": (set_cell(5, outputs=[new_output("stream", text="x" * 1_000_000)]), "1,00"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_rule_is_named(what, course):
    change, message = BROKEN[what]
    faults = problems_after(course, change)
    assert any(message in problem for problem in faults), faults


def replace(path, old, new):
    path.write_text(path.read_text().replace(old, new))


def test_stale_outputs_are_named(good_path, course):
    replace(good_path, "x = 1", "x = 2")
    assert problems(good_path) == ["the code has changed since the outputs were written; run: make notebooks"]
    assert any("has changed since" in problem for problem in problems_after(course, stamp=False))


@pytest.mark.parametrize(("old", "new"), [("git", "svn"), ('"course-setup"', '"hide-output"')])
def test_a_notebook_that_does_not_get_the_course_is_named(old, new, good_path):
    replace(good_path, old, new)
    fault = "its first code cell does not get the course; run: python -m ddp_course.authoring setup"
    assert fault in problems(good_path)


def test_a_file_name_without_a_number_is_named(course):
    assert any("does not start with two digits" in fault for fault in problems_after(course, name="notebooks/a.ipynb"))


@pytest.mark.parametrize("line", ['"id": "c2",', ""])
def test_cells_without_an_id_of_their_own_are_named(line, good_path):
    replace(good_path, '"id": "c4",', line)
    assert problems(good_path) == ["a cell has no id, or another cell's; run: make notebooks"]


def test_a_solution_needs_no_lesson_sections_but_fresh_outputs(course):
    def plain(nb):
        nb.cells[0].source = "# Exercises 4\n\nThree scripts that are nearly right."
        nb.cells[2].source = nb.cells[4].source = nb.cells[6].source = "### Exercise 4.1"

    assert problems_after(course, plain, "solutions/04_tiny.ipynb") == []
    assert problems_after(course, plain, "solutions/04_tiny.ipynb", stamp=False) != []


@pytest.mark.parametrize("sentence", ["Two took 3 times as long.", "Here two are slower.", "Twice as long as one."])
@pytest.mark.parametrize("code", ["assert 2 > 1", "testing.assert_close(1, 1)", "%%writefile a.py\nassert 2", "x = 1"])
def test_a_measured_comparison_stands_after_an_assertion(sentence, code, course):
    def change(nb):
        nb.cells[5].source = code
        nb.cells[6].source = f"{sentence}\n\n{nb.cells[6].source}"

    faults = [problem for problem in problems_after(course, change) if "asserted anything" in problem]
    assert bool(faults) == (code == "x = 1")


@pytest.mark.parametrize("place", ["notebook 07", "Notebook 7b.1", "section 7c.5", "PyTorch 2.13"])
def test_the_number_of_a_page_is_no_measured_one(place):
    assert not COMPARES.match(NUMBERED.sub("", f"There is more of it in {place}."))
    assert COMPARES.match(NUMBERED.sub("", f"It was 5 times more than in {place}."))


@pytest.mark.parametrize("sentence", ["It has just run on two ranks.", "The last cell just showed it.", "Not $5!$."])
def test_fair_sentences_pass(sentence, course):
    assert problems_after(course, set_source(4, f"## 4.2 B\n\n{sentence}")) == []
