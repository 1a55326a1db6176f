"""The setup cell, the first code cell of every notebook: it installs the course on Colab and Kaggle, and elsewhere
checks that it is installed. Links above open the notebook there, once pyproject.toml names a repository on GitHub.

    python -m ddp_course.authoring setup [--check] [names...]

Notebooks hold its whole text, because it runs before there is a package to import. Where the course is installed it
does nothing: `make notebooks` does not run it, and the outputs do not depend on it.
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
    """The setup cell, with the address of the repository in `root`."""
    source = SOURCE.replace(UNKNOWN, repository(root) or UNKNOWN)
    folded = {"cellView": "form", "jupyter": {"source_hidden": True}}  # in Colab, in JupyterLab
    return new_code_cell(source, id=TAG, metadata=folded | {"tags": ["hide-input", TAG]})


def is_setup(cell: NotebookNode) -> bool:
    """Whether it is the setup cell or the cell with the links above it."""
    return TAG in cell.metadata.get("tags", [])


def lesson_cells(nb: NotebookNode) -> list[NotebookNode]:
    """All cells but the setup cell and its links."""
    return [cell for cell in nb.cells if not is_setup(cell)]


def hosted_links(address: str | None, notebook: str) -> str:
    """Markdown links that open `notebook`, a path in the repository, on both hosts. "" for an address not on GitHub."""
    match = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?", address or "")
    if not match:
        return ""
    file = f"{match[1]}/blob/{BRANCH}/{notebook}"
    return (
        f"[Open in Colab](https://colab.research.google.com/github/{file}) · "
        f"[Open in Kaggle](https://kaggle.com/kernels/welcome?src=https://github.com/{file})"
    )


def put_setup_cell(nb: NotebookNode, root: Path, path: Path) -> None:
    """Insert the setup cell before the first code cell of `nb`, the notebook at `path`, and remove an older one.

    The links go below the title. Those of a solution open the exercise that is derived from it.
    """
    nb.cells = lesson_cells(nb)
    first = next(index for index, cell in enumerate(nb.cells) if cell.cell_type == "code")
    nb.cells.insert(first, setup_cell(root))
    folder = "notebooks" if path.parent.name == "notebooks" else "exercises"
    if links := hosted_links(repository(root), f"{folder}/{path.name}"):
        nb.cells.insert(1, new_markdown_cell(links, id="course-links", metadata={"tags": [TAG]}))
