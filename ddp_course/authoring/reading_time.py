"""The reading time in a notebook's header box, computed from its words, lines of code and figures.

The three speeds are a rounded fit to the times that authors had estimated for 41 notebooks.
"""

import re

from nbformat import NotebookNode

from ddp_course.authoring.setup_cell import lesson_cells

WORDS_PER_MINUTE, CODE_LINES_PER_MINUTE = 125, 17
MINUTES_PER_FIGURE = 1.5
SHOWN_LINE = re.compile(r"^ *\d+  +\S", re.MULTILINE)  # of `show_source`
STATED = re.compile(r"(?<=\*\*Reading time\*\* )\d+ minutes?")


def reading_time(nb: NotebookNode) -> str:
    """The reading time as the header box states it, in steps of 5 minutes.

    Source that a cell shows counts as code; folded code does not count.
    """
    cells = lesson_cells(nb)
    words = sum(len(cell.source.split()) for cell in cells if cell.cell_type == "markdown")
    code = [c for c in cells if c.cell_type == "code" and "hide-input" not in c.metadata.get("tags", [])]
    lines = sum(bool(line.strip()) for cell in code for line in cell.source.splitlines())
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    texts = [data.get("text/plain", "") for data in outputs]
    lines += sum(len(SHOWN_LINE.findall(text)) for text in texts if text.startswith("ddp_course/"))
    figures = sum("image/png" in data for data in outputs)
    minutes = words / WORDS_PER_MINUTE + lines / CODE_LINES_PER_MINUTE + MINUTES_PER_FIGURE * figures
    return f"{max(5, 5 * round(minutes / 5))} minutes"
