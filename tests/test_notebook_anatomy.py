"""Every notebook is built alike, its outputs belong to its code, and its prose keeps the course's tone.

`problems` lists what is wrong with one notebook. The tests below the first show that each rule can be broken.
"""

import ast
import json
import re
import statistics
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from ddp_course.lab import authoring
from ddp_course.lab.notebook_run import code_hash, is_fresh, notebook_text, output_texts, read_notebook

NOTEBOOKS = authoring.select(authoring.ROOT, ("notebooks", "solutions"), [])
LARGEST_BYTES = 1_000_000
MEDIAN_LINES, LONGEST_CELL, LONGEST_SCRIPT = 8, 40, 80
NEVER = re.compile(r"\b(simply|obviously)\b", re.IGNORECASE)
JUST_AS_FILLER = re.compile(
    r"(?<!has )(?<!have )(?<!had )(?<!been )\bjust (use|run|add|call|do|write|type|copy|make|import|open|needs?|want|"
    r"works?|remember|pass|follow|change|install|click|try|one more|a matter|like that)\b",
    re.IGNORECASE,
)
LEDGER_NAME = re.compile(r"\bseed \d{3}\b|\bB\d{1,2}\b")
SHOWN = re.compile(r"^(ddp_course/\S+\.py)\b.*\n((?: *\d+(?:  .*)?(?:\n|$))+)", re.MULTILINE)  # by show_source
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)|(?:href|src)=\"([^\"]+)\"")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_notebook_anatomy(path):
    found = problems(path)
    if found:
        pytest.fail(f"{path.parent.name}/{path.name}:\n  " + "\n  ".join(found), pytrace=False)


# ---- the rules ---------------------------------------------------------------------------------------------------


def problems(path: Path) -> list[str]:
    """What is wrong with the notebook at `path`, one sentence each. Solutions need no lesson's sections."""
    nb = read_notebook(path)
    found = [*outputs_belong_to_code(nb), *shown_source_is_the_packages(nb), *cells_are_short_and_introduced(nb)]
    found += [*parameters_cell(nb), *tone(nb), *links_resolve(nb, path), *title_and_promise(nb)]
    if path.parent.name == "notebooks":
        found += [*header_box(nb), *sections(nb, path)]
    if path.stat().st_size > LARGEST_BYTES:
        found.append(f"the file has {path.stat().st_size:,} bytes; the limit is {LARGEST_BYTES:,}")
    on_disk = [cell.get("id") for cell in json.loads(path.read_text())["cells"]]
    if on_disk != [cell.id for cell in nb.cells]:
        found.append("a cell has no id, or another cell's; run: make notebooks")
    return found


def label(nb, cell) -> str:
    return f"cell {[other.id for other in nb.cells].index(cell.id) + 1}"


def code_cells(nb) -> list:
    return [cell for cell in nb.cells if cell.cell_type == "code"]


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


def shown_source_is_the_packages(nb):
    """Its lines stand in the file, one after the other; their numbers may have moved."""
    for cell in code_cells(nb):
        for output in cell.outputs:
            for name, listing in SHOWN.findall(output.get("data", {}).get("text/plain", "")):
                shown = [re.sub(r"^ *\d+(  )?", "", line) for line in listing.splitlines()]
                file = authoring.ROOT / name
                there = [line.rstrip() for line in file.read_text().splitlines()] if file.exists() else []
                if "\n".join(["", *shown, ""]) not in "\n".join(["", *there, ""]):
                    yield f"{label(nb, cell)} shows lines that {name} no longer has; run: make notebooks"


def prints(source: str) -> bool:
    """Whether a cell surely prints when it runs: a print(...) that is a statement of its own at the top level."""
    try:
        lines = ["pass" if line.startswith(("%", "!")) else line for line in source.splitlines()]
        body = ast.parse("\n".join(lines)).body
    except SyntaxError:
        return False
    calls = [node.value.func for node in body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    return not source.startswith("%%") and any(isinstance(call, ast.Name) and call.id == "print" for call in calls)


def cells_are_short_and_introduced(nb):
    lengths = []
    for before, cell in zip([None, *nb.cells], nb.cells, strict=False):
        if cell.cell_type != "code":
            continue
        if before is None or before.cell_type != "markdown" or not before.source.strip():
            yield f"{label(nb, cell)} has no markdown before it"
        is_script = cell.source.startswith("%%writefile")
        lines = len(cell.source.splitlines()) - is_script
        lengths.append(lines)
        limit = LONGEST_SCRIPT if is_script else LONGEST_CELL
        if lines > limit:
            yield f"{label(nb, cell)} has {lines} lines of code; the limit is {limit}"
        if lines == 0:
            yield f"{label(nb, cell)} is empty"
    if lengths and statistics.median(lengths) > MEDIAN_LINES:
        yield f"the median code cell has {statistics.median(lengths):g} lines; the limit is {MEDIAN_LINES}"


def parameters_cell(nb):
    tagged = [cell for cell in code_cells(nb) if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1:
        yield f"{len(tagged)} cells are tagged `parameters`, expected 1"
        return
    for_tests = nb.metadata.get("ddp_course", {}).get("test_parameters")
    if for_tests is None:
        yield "metadata ddp_course.test_parameters is missing; {} if the reading parameters are fast enough"
        return
    assigned = {
        target.id
        for node in ast.walk(ast.parse(tagged[0].source))
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
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
    number = int(path.stem[:2]) if re.match(r"\d\d_", path.stem) else None
    if number is None:
        yield "the file name does not start with two digits and an underscore"
        return
    text = "\n\n".join(without_code(cell.source) for cell in nb.cells if cell.cell_type == "markdown")
    headings = [line[3:].strip() for line in text.splitlines() if line.startswith("## ")]
    numbered = [heading for heading in headings if re.match(r"\d", heading)]
    if not numbered:
        yield f"there is no numbered section (## {number}.1 ...)"
    for place, heading in enumerate(numbered, start=1):
        if not heading.startswith(f"{number}.{place} "):
            yield f"section {heading!r} should be numbered {number}.{place}"
    if "what could go wrong" not in text.lower():
        yield "there is no 'What could go wrong'"
    if not re.search(r"^(#+ |>? ?\*\*)[^\n]*summary", text, re.IGNORECASE | re.MULTILINE):
        yield "there is no summary (a heading or bold word 'Summary')"
    exercise = path.parents[1] / "exercises" / path.name
    for_number = sorted(exercise.parent.glob(f"{number:02d}_*.ipynb"))
    if for_number and not any(f"../exercises/{there.name}" in text for there in for_number):
        yield f"there is no link to ../exercises/{for_number[0].name}"


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
> **Needs** nothing · **Runs in** <!-- measured -->**about 5 s** on 2 cores, no GPU<!-- /measured --> ·
> **Hardware** any
"""
TEXTS = ["## 3.1 Who is there?\n\nEvery rank just said so: `5!` and $n!$ and ![one](../README.md).", "## 3.2 And then?"]
END = "## What could go wrong\n\nA rank dies.\n\n## Summary\n\n[Exercise](../exercises/03_tiny.ipynb)"


@pytest.fixture
def course(tmp_path):
    """A course folder with one notebook that keeps every rule; `write` stamps and writes a changed one."""
    for folder in ("notebooks", "exercises"):
        (tmp_path / folder).mkdir()
    (tmp_path / "README.md").touch()
    (tmp_path / "exercises" / "03_tiny.ipynb").touch()
    return tmp_path


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


def problems_after(course, change=lambda nb: None, name="notebooks/03_tiny.ipynb", stamp=True):
    nb = good_notebook()
    change(nb)
    if stamp:
        nb.metadata.ddp_course["code_hash"] = code_hash(nb)
    path = course / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(notebook_text(nb))
    return problems(path)


def test_a_notebook_that_keeps_every_rule_has_no_problems(course):
    assert problems_after(course) == []


def set_source(index, source):
    return lambda nb: nb.cells[index].update(source=source)


def edit(index, old, new):
    return lambda nb: nb.cells[index].update(source=nb.cells[index].source.replace(old, new))


def set_cell(index, **fields):
    return lambda nb: nb.cells[index].update(**fields)


def show(code):
    return new_output("display_data", data={"text/plain": f"ddp_course/errors.py · InputError\n4  {code}"})


BROKEN = {
    "no outputs": (set_cell(5, outputs=[]), "cell 6 prints, but has no output"),
    "error output": (set_cell(5, outputs=[new_output("error", ename="E", evalue="", traceback=[])]), "shows an error"),
    "author's path": (set_cell(5, outputs=[new_output("stream", text="in /home/ann/x")]), "shows /home/ann"),
    "stale source": (set_cell(5, outputs=[show("def hook(): pass")]), "shows lines that ddp_course/errors.py"),
    "run out of order": (set_cell(5, execution_count=9), "execution count 9, expected 3"),
    "never run": (set_cell(3, execution_count=None), "execution count None, expected 2"),
    "injected cell": (set_cell(5, metadata={"tags": ["injected-parameters"]}), "papermill's injected cell"),
    "code after code": (lambda nb: nb.cells.pop(4), "cell 5 has no markdown before it"),
    "empty cell": (set_source(5, ""), "cell 6 is empty"),
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
    "wrong number": (edit(2, "3.1", "4.1"), "should be numbered 3.1"),
    "gap in numbers": (edit(4, "3.2", "3.3"), "should be numbered 3.2"),
    "no sections": (lambda nb: [nb.cells[i].update(source="text") for i in (2, 4)], "no numbered section"),
    "no dangers": (edit(6, "What could go wrong", "Dangers"), "'What could go wrong'"),
    "no summary": (edit(6, "Summary", "End"), "no summary"),
    "no exercise link": (edit(6, "../exercises/03_tiny.ipynb", "../README.md"), "no link to ../exercises/03_tiny"),
    "dead link": (edit(6, "../exercises/03_tiny.ipynb", "../exercises/03_none.ipynb"), "03_none.ipynb leads nowhere"),
    "simply": (set_source(4, "## 3.2 Simply put"), "'Simply'"),
    "obviously": (set_source(4, "## 3.2 B\n\nIt is obviously so."), "'obviously'"),
    "just": (set_source(4, "## 3.2 B\n\nNow just run it."), "'just run'"),
    "exclamation": (set_source(4, "## 3.2 B\n\nIt works!"), "exclamation mark"),
    "ledger name": (set_source(5, "print(STEPS)  # B26"), "'B26'"),
    "source name": (set_source(4, "## 3.2 B\n\nAs in seed 001."), "'seed 001'"),
    "too large": (set_cell(5, outputs=[new_output("stream", text="x" * 1_000_000)]), "1,00"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_rule_is_named(what, course):
    change, message = BROKEN[what]
    found = problems_after(course, change)
    assert any(message in problem for problem in found), found


def test_stale_outputs_are_named(course):
    assert any("has changed since" in problem for problem in problems_after(course, stamp=False))
    path = course / "notebooks" / "03_tiny.ipynb"
    problems_after(course)
    path.write_text(path.read_text().replace("x = 1", "x = 2"))
    assert problems(path) == ["the code has changed since the outputs were written; run: make notebooks"]


@pytest.mark.parametrize("line", ['"id": "c2",', ""])
def test_cells_without_an_id_of_their_own_are_named(line, course):
    problems_after(course)
    path = course / "notebooks" / "03_tiny.ipynb"
    path.write_text(path.read_text().replace('"id": "c4",', line))
    assert problems(path) == ["a cell has no id, or another cell's; run: make notebooks"]


def test_a_solution_needs_no_lesson_sections_but_fresh_outputs(course):
    def plain(nb):
        nb.cells[0].source = "# Exercises 3\n\nThree scripts that are nearly right."
        nb.cells[2].source = nb.cells[4].source = nb.cells[6].source = "### Exercise 3.1"

    assert problems_after(course, plain, "solutions/03_tiny.ipynb") == []
    assert problems_after(course, plain, "solutions/03_tiny.ipynb", stamp=False) != []


@pytest.mark.parametrize("sentence", ["It has just run on two ranks.", "The last cell just showed it.", "Not $5!$."])
def test_fair_sentences_pass(sentence, course):
    assert problems_after(course, set_source(4, f"## 3.2 B\n\n{sentence}")) == []
