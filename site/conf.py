"""The course as a web site: the committed notebooks with their stored outputs, and the calculators.

make site builds it into build/site. No notebook is executed.
"""

import sys
from pathlib import Path

from docutils.nodes import SkipNode
from latex2mathml.converter import convert
from sphinx.application import Sphinx

from ddp_course.lab.course_map import PARTS, course_map, lessons

sys.path.insert(0, str(Path(__file__).parent))  # for calculators.py
project = "Multi-process PyTorch training, from one process to a cluster"
html_title = "DDP, from one process to a cluster"
extensions = ["myst_nb", "sphinx_copybutton", "calculators", "first_picture", "try_out"]
root_doc = "site/index"
include_patterns = [
    "site/*.md",
    "notebooks/*.ipynb",
    "notebooks/*.md",
    "exercises/*.ipynb",
    "solutions/*.ipynb",
    "docs/*.md",
    "ARCHITECTURE.md",
    "benchmarks/RESULTS.md",
    "doctor/README.md",
]
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"  # of outputs: "commonmark", the default, has no tables
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # for links such as 04_ddp.ipynb#4-6-...
html_theme = "furo"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["calculator.css", "first_picture.css", "quiz.css"]
html_js_files = [("quiz.js", {"defer": "defer"})]
html_favicon = "static/icon.svg"
html_show_copyright = False
html_extra_path = ["root"]  # the address without a path leads to the first page
html_theme_options = {"light_css_variables": {"mystnb-source-bg-color": "#f6f6f6"}}
nb_code_prompt_show, nb_code_prompt_hide = "Show the code", "Hide the code"
html_show_sphinx = False


def add_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Write the list of notebooks into the first page, with the question that each answers."""
    if name != root_doc:
        return
    trees: dict[str, list[str]] = {}
    solutions = []
    for number, title, path, exercises in lessons():
        if number in PARTS:
            part = trees.setdefault(PARTS[number], [])
        part.append(f"{number} {title} <../notebooks/{path.stem}>")
        if exercises:
            part.append(f"{number} exercises <../exercises/{exercises.stem}>")
            solutions.append(f"{number} solutions <../solutions/{exercises.stem}>")
    text = course_map("../notebooks/").data
    for caption, entries in (trees | {"Solutions": solutions}).items():
        text += "\n".join(["", "", "```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```"])
    source[0] = source[0].replace("{{ map }}", text)


def inline_math(self, node) -> None:
    """Write a formula as MathML, which browsers draw without JavaScript."""
    self.body.append(convert(node.astext()))
    raise SkipNode


def block_math(self, node) -> None:
    self.body.append(f"<div>{convert(node.astext(), display='block')}</div>")
    raise SkipNode


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))
    app.connect("source-read", add_contents)


html_math_renderer = "mathml"
