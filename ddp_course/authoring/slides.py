"""Make slides of a notebook from its stored outputs: its questions, predictions, figures and measured numbers.

make slides writes build/slides/04_ddp.html and so on, with nbconvert's exporter for reveal.js. Each section has a slide
with its heading and its predictions; the slides below have the figures and the measured numbers.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbconvert import SlidesExporter
from nbformat import NotebookNode

from ddp_course.authoring.commands import ROOT, select
from ddp_course.authoring.notebook_run import output_texts, read_notebook
from ddp_course.authoring.setup_cell import lesson_cells
from ddp_course.base.command import run_command
from ddp_course.base.errors import InputError, in_one_line
from ddp_course.base.parser import Parser
from ddp_course.lab.course_map import lessons

UNANSWERED = re.compile(r"^not predicted: write your answer.*\n?", re.MULTILINE)
REVEALED = re.compile(r"^not predicted · (.+)$", re.MULTILINE)  # "measured 1e-6", "simulated 12.3 s"
SKIPPED = "What could go wrong", "Summary"
LAST = "10"  # the last notebook that gets slides by default


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Write the slides of notebooks 00 to 10, or of those whose names start with one of the arguments."""
    parser = Parser(prog="python -m ddp_course.authoring.slides", description=main.__doc__)
    parser.add_argument("names", nargs="*", help="how a notebook's name starts: 04; default: 00 to 10")
    try:
        names = parser.parse_args(arguments).names
        chosen = select(root, ("notebooks",), names) if names else spine(root)
    except InputError as error:
        print(f"error: {in_one_line(error)}", file=sys.stderr)
        return 2
    folder = root / "build" / "slides"
    folder.mkdir(parents=True, exist_ok=True)
    exporter = SlidesExporter(exclude_input=True, exclude_input_prompt=True, exclude_output_prompt=True)
    for path in chosen:
        body, _ = exporter.from_notebook_node(slides_of(read_notebook(path)))
        (folder / f"{path.stem}.html").write_text(body, encoding="utf-8")
        print(f"build/slides/{path.stem}.html")
    return 0


def spine(root: Path) -> list[Path]:
    """The notebooks 00 to LAST, without the deep dives, such as 07b."""
    return [path for number, _, path, _ in lessons(root) if number.isdigit() and number <= LAST]


def slides_of(nb: NotebookNode) -> NotebookNode:
    """A notebook whose cells are slides: the title, the sections, the summary."""
    title, *cells = lesson_cells(nb)
    slides = [_text(title.source.split("> **Needs**")[0].replace("\n>", "\n").replace("> ", ""), "slide")]
    for heading, section_cells in _sections(cells):
        if heading in SKIPPED:
            continue
        questions = [text for cell in section_cells for text in _questions(cell)]
        unanswered = iter(questions)
        answers = [slide for cell in section_cells for slide in _answers(cell, unanswered)]
        if answers:
            predictions = "".join(f"\n\n*Predict:* {text}" for text in questions)
            slides += [_text(f"## {heading}{predictions}", "slide"), *answers]
    return nbformat.v4.new_notebook(cells=[*slides, _summary(cells)], metadata=nb.metadata)


def _sections(cells: list[NotebookNode]) -> list[tuple[str, list[NotebookNode]]]:
    """(heading, the code cells below it) of each section."""
    sections: list[tuple[str, list[NotebookNode]]] = []
    for cell in cells:
        if cell.cell_type == "markdown":
            sections += [(heading, []) for heading in re.findall(r"^## (.+)$", cell.source, re.MULTILINE)]
        elif sections:
            sections[-1][1].append(cell)
    return sections


def _questions(cell: NotebookNode) -> list[str]:
    """The questions of the cell's predictions, which its stored output shows as not answered."""
    texts = [text for text in output_texts(cell) if UNANSWERED.search(text)]
    return [line for text in texts for line in UNANSWERED.sub("", text).splitlines() if line]


def _answers(cell: NotebookNode, questions: Iterator[str]) -> list[NotebookNode]:
    """The slide below the section's with the values that the cell reveals, and its figures; [] if it has neither.

    questions: the section's questions that have no answer yet; each value takes the next one.
    """
    revealed = [line for text in output_texts(cell) for line in REVEALED.findall(text)]
    lines = [f"{next(questions, '')}: **{line}**".removeprefix(": ") for line in revealed]
    figures = [output for output in cell.outputs if any(kind.startswith("image/") for kind in output.get("data", {}))]
    text = [_text("\n\n".join(lines), "subslide")] if lines else []
    if not figures:
        return text
    figure_cell = nbformat.v4.new_code_cell(outputs=figures)
    figure_cell.metadata["slideshow"] = {"slide_type": "-" if lines else "subslide"}
    return [*text, figure_cell]


def _summary(cells: list[NotebookNode]) -> NotebookNode:
    [text] = [cell.source for cell in cells if cell.cell_type == "markdown" and "## Summary" in cell.source]
    points = text[text.index("## Summary") :].split("\n\n")
    return _text("\n\n".join(points[:2]), "slide")


def _text(source: str, kind: str) -> NotebookNode:
    return nbformat.v4.new_markdown_cell(source, metadata={"slideshow": {"slide_type": kind}})


if __name__ == "__main__":
    run_command(main)
