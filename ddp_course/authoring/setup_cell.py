"""The first code cell of every notebook: on Colab and Kaggle it gets the course; elsewhere it looks for it.
Above it, once pyproject.toml names the repository on GitHub, stand links that open the notebook there.

    python -m ddp_course.authoring setup [--check] [names...]

The notebooks carry its text, for there may be nothing yet to import it from. Where the course is installed it does
nothing: `make notebooks` does not run it, and the outputs do not depend on it.
"""

import re
import tomllib
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

TAG = "course-setup"
BRANCH = "main"  # from which .github/workflows/site.yml publishes
UNKNOWN = "<this repository>"  # as in README.md
SOURCE = """\
# @title On Colab and Kaggle: get the course
def get_the_course():
    import importlib.util
    import os
    import subprocess
    import sys

    def stop(sentence):
        error = RuntimeError(sentence)
        error._render_traceback_ = lambda: [sentence]  # IPython shows this in place of a traceback
        raise error

    def run(*command):
        ended = subprocess.run(command, capture_output=True, text=True)
        if ended.returncode:
            stop(f"{' '.join(command)} failed: {ended.stderr.strip()}")

    hosted = {"COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE"} & os.environ.keys()
    if hosted and not os.path.isdir("../ddp_course"):
        address = os.environ.get("DDP_COURSE_ADDRESS", "<this repository>")
        if not os.path.isdir("ddp-course"):
            run("git", "clone", "--quiet", "--depth=1", address, "ddp-course")
        run(sys.executable, "ddp-course/requirements/hosted.py")
        os.chdir("ddp-course/notebooks")
        sys.path[:0] = [os.path.abspath(".."), os.path.abspath("../doctor")]
        print("The course is installed; the kernel now works in", os.getcwd())
    if not os.path.isdir("../ddp_course"):
        stop(f"Start the kernel in the folder of this notebook; it works in {os.getcwd()}.")
    if not importlib.util.find_spec("ddp_course"):
        stop(f"{sys.executable} has no ddp_course: run `make .venv/.installed` in the folder of the course, "
             "and choose .venv/bin/python there as the kernel.")


get_the_course()"""


def repository(root: Path) -> str | None:
    """The address that pyproject.toml in `root` names, if it names one."""
    return tomllib.loads((root / "pyproject.toml").read_text())["project"].get("urls", {}).get("Repository")


def setup_cell(root: Path) -> NotebookNode:
    """The cell, with the address of the repository."""
    source = SOURCE.replace(UNKNOWN, repository(root) or UNKNOWN)
    folded = {"cellView": "form", "jupyter": {"source_hidden": True}}  # in Colab, in JupyterLab
    return new_code_cell(source, id=TAG, metadata=folded | {"tags": ["hide-input", TAG]})


def is_setup(cell: NotebookNode) -> bool:
    return TAG in cell.metadata.get("tags", [])


def lesson_cells(nb: NotebookNode) -> list[NotebookNode]:
    """Every cell but this one."""
    return [cell for cell in nb.cells if not is_setup(cell)]


def hosted_links(address: str | None, notebook: str) -> str:
    """Markdown: both hosts open `notebook`, its path in the repository. "" while no address on GitHub is known."""
    match = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?", address or "")
    if not match:
        return ""
    file = f"{match[1]}/blob/{BRANCH}/{notebook}"
    return (
        f"[Open in Colab](https://colab.research.google.com/github/{file}) · "
        f"[Open in Kaggle](https://kaggle.com/kernels/welcome?src=https://github.com/{file})"
    )


def put_setup_cell(nb: NotebookNode, root: Path, path: Path) -> None:
    """Put the cell of the notebook at `path` before the first code cell, in the place of an older one.

    The links stand below the title. Those of a solution open its exercise, which is derived from it.
    """
    nb.cells = lesson_cells(nb)
    first = next(index for index, cell in enumerate(nb.cells) if cell.cell_type == "code")
    nb.cells.insert(first, setup_cell(root))
    folder = "notebooks" if path.parent.name == "notebooks" else "exercises"
    if links := hosted_links(repository(root), f"{folder}/{path.name}"):
        nb.cells.insert(1, new_markdown_cell(links, id="course-links", metadata={"tags": [TAG]}))
