"""How long a page takes to read: the number in its header box, counted and not felt.

The three speeds are a fit to the times that authors had written by hand for 41 pages; rounded, for they are no science.
"""

import re

from nbformat import NotebookNode

from ddp_course.authoring.setup_cell import lesson_cells

WORDS, CODE_LINES = 125, 17  # a minute
MINUTES_PER_FIGURE = 1.5
SHOWN_LINE = re.compile(r"^ *\d+  +\S", re.MULTILINE)  # of `show_source`
STATED = re.compile(r"(?<=\*\*Reading time\*\* )\d+ minutes?")


def reading_time(nb: NotebookNode) -> str:
    """The reading time as the header box states it, in steps of 5 minutes. Source that a cell shows counts as code,
    folded code does not."""
    cells = lesson_cells(nb)
    words = sum(len(cell.source.split()) for cell in cells if cell.cell_type == "markdown")
    code = [c for c in cells if c.cell_type == "code" and "hide-input" not in c.metadata.get("tags", [])]
    lines = sum(bool(line.strip()) for cell in code for line in cell.source.splitlines())
    shown = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    sources = [data.get("text/plain", "") for data in shown if data.get("text/plain", "").startswith("ddp_course/")]
    lines += sum(len(SHOWN_LINE.findall(source)) for source in sources)
    figures = sum("image/png" in data for data in shown)
    minutes = words / WORDS + lines / CODE_LINES + MINUTES_PER_FIGURE * figures
    return f"{max(5, 5 * round(minutes / 5))} minutes"
