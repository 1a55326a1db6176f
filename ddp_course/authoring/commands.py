"""Run the notebooks and store their outputs, derive the exercises, write the setup cells.

    python -m ddp_course.authoring notebooks [--check] [names...]     make notebooks
    python -m ddp_course.authoring exercises [--check] [names...]     make exercises
    python -m ddp_course.authoring setup [--check] [names...]

`notebooks` runs notebooks/*.ipynb and solutions/*.ipynb with the parameters a reader would use and writes the
outputs back, with a hash of the code that produced them. `exercises` derives exercises/*.ipynb from
solutions/*.ipynb. `setup` writes the first code cell of all three (setup_cell.py). A name such as `04` or
`solutions/02` picks the notebooks whose names start with it. `--check` writes nothing and names the files that are out
of date.
"""

import argparse
import base64
import functools
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from ddp_course.authoring.notebook_run import (
    NotebookFailed,
    cell_label,
    code_hash,
    is_fresh,
    notebook_text,
    output_texts,
    prepare_folder,
    read_notebook,
    run_notebook,
)
from ddp_course.authoring.reading_time import STATED, reading_time
from ddp_course.authoring.setup_cell import is_setup, lesson_cells, put_setup_cell
from ddp_course.base.atomic_file import replacing
from ddp_course.base.errors import InputError
from ddp_course.base.parser import Parser

ROOT = Path(__file__).resolve().parents[2]
STUB = 'raise NotImplementedError("your turn")'
MEASURED = re.compile(r"(<!-- measured -->).*?(<!-- /measured -->)", re.DOTALL)
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {"file_extension": ".py", "mimetype": "text/x-python", "name": "python", "pygments_lexer": "ipython3"}


def select(root: Path, folders: tuple[str, ...], names: list[str]) -> list[Path]:
    """The notebooks in `folders`, in reading order, whose name or folder/name starts with one of `names`.

    All of them if `names` is empty. Raises InputError for a name that no notebook starts with.
    """
    notebooks = [path for folder in folders for path in sorted((root / folder).glob("*.ipynb"))]
    chosen = set()
    for name in names:
        matches = {path for path in notebooks if f"{path.parent.name}/{path.name}".startswith(name)}
        matches |= {path for path in notebooks if path.name.startswith(name)}
        if not matches:
            existing = ", ".join(f"{path.parent.name}/{path.stem}" for path in notebooks) or "none"
            raise InputError(f"no notebook in {' or '.join(folders)} starts with {name!r}; there are: {existing}")
        chosen |= matches
    return [path for path in notebooks if not names or path in chosen]


def replace_file(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, in a folder that is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(text)


def refresh_notebook(path: Path, root: Path, on_cell: Callable[[int, int], None]) -> float:
    """Run the notebook with its reading parameters, write outputs, hash and time back, and return the seconds.

    The file stays as it was if the run fails or an output holds a path of this machine: both raise NotebookFailed.
    on_cell: see `run_notebook`.
    """
    name = path.relative_to(root).as_posix()
    nb = read_notebook(path)
    prepare_folder(nb, name, path.parent)
    lesson = nbformat.from_dict(nb | {"cells": lesson_cells(nb)})
    start = time.monotonic()
    executed = {cell.id: cell for cell in run_notebook(lesson, name, path.parent, on_cell=on_cell).cells}
    seconds = time.monotonic() - start

    for cell in nb.cells:
        for volatile in ("papermill", "execution", "collapsed", "scrolled"):
            cell.metadata.pop(volatile, None)
        if cell.cell_type == "code" and not is_setup(cell):
            cell.outputs = tidy_outputs(executed[cell.id].outputs)
            cell.execution_count = executed[cell.id].execution_count
            refuse_private_paths(nb, cell, name, root)
    course = dict(nb.metadata.get("ddp_course", {}))  # keeps test_parameters
    course |= {"code_hash": code_hash(nb), "seconds": round(seconds, 1), "machine": machine_text()}
    nb.metadata = nbformat.from_dict({"ddp_course": course, "kernelspec": KERNEL, "language_info": LANGUAGE})
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            cell.source = MEASURED.sub(lambda marks: marks[1] + measured_text(course) + marks[2], cell.source)
    nb.cells[0].source = STATED.sub(reading_time(nb), nb.cells[0].source)
    replace_file(path, notebook_text(nb))
    return seconds


def tidy_outputs(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """The outputs of a cell, normalised to differ as little as possible from run to run.

    Neighbouring pieces of one stream are joined. A progress bar keeps its last state. A widget is dropped, because a
    page could show its first text only ("0%").
    """
    tidy: list[NotebookNode] = []
    for output in outputs:
        if WIDGET_VIEW in output.get("data", {}):
            continue
        if output.output_type == "stream" and tidy and tidy[-1].get("name") == output.name:
            tidy[-1].text += output.text
        else:
            tidy.append(output)
    for output in tidy:
        if output.output_type == "stream":
            output.text = re.sub(r"[^\n]*\r(?=[^\r\n])", "", output.text).replace("\r", "")
    return tidy


def private_paths(root: Path) -> list[str]:
    """Folders that must not appear in outputs: home, the repository, and the Python environment of this machine."""
    folders = {Path.home(), root, root.resolve(), Path(sys.prefix), Path(sys.base_prefix)}
    on_every_machine = {Path("/"), Path("/usr"), Path("/usr/local")}
    return sorted(str(folder) for folder in folders - on_every_machine)


def refuse_private_paths(nb: NotebookNode, cell: NotebookNode, name: str, root: Path) -> None:
    """Raise NotebookFailed if an output of the cell holds one of `private_paths`."""
    paths = "|".join(re.escape(path) for path in private_paths(root))
    for line in (line for text in output_texts(cell) for line in text.splitlines()):
        match = re.search(rf"(?<![\w.-])({paths})(?![\w.-])", line)
        if match:
            raise NotebookFailed(
                f"{name}, {cell_label(nb, cell)}: an output holds {match[1]}, a path of this machine; "
                f"print it relative to the notebook\n    {line.strip()[:200]}"
            )


def machine_text() -> str:
    """The cores that this process may use, and the GPUs, as the header box states them."""
    import torch

    from ddp_course.launcher.cores import usable_cores

    cores, gpus = usable_cores()[1], torch.cuda.device_count()
    return f"{cores} core{'s' * (cores > 1)}, {f'{gpus} × {torch.cuda.get_device_name(0)}' if gpus else 'no GPU'}"


def measured_text(course: dict) -> str:
    """The text between the `measured` marks of a header box: the time in steps of 5 s, and the machine."""
    return f"**about {max(5, 5 * round(course['seconds'] / 5))} s** on {course['machine']}"


def readme_picture(root: Path = ROOT) -> bytes:
    """The figure of notebook 04 that README.md shows, as a PNG: one and two processes with DDP, one loss curve."""
    notebook = read_notebook(root / "notebooks" / "04_ddp.ipynb")
    figures = [output.data for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    [figure] = [data for data in figures if "draw one loss curve" in data.get("text/plain", "") and "image/png" in data]
    return base64.b64decode(figure["image/png"])


def exercise_text(solution: Path) -> str:
    """The text of the exercise notebook that is derived from a solution notebook.

    Cells tagged `solution` are removed (nbconvert's TagRemovePreprocessor). Each region from `### BEGIN SOLUTION` to
    `### END SOLUTION`, also inside a `%%writefile` cell, becomes one line, indented like the mark, that raises
    NotImplementedError (nbgrader's ClearSolutions). Outputs are removed. A cell at the end links to the solution.
    Raises InputError if the marks do not pair up.
    """
    try:
        from nbconvert.preprocessors import ClearOutputPreprocessor, TagRemovePreprocessor
        from nbgrader.preprocessors import ClearSolutions
    except ImportError as error:
        raise InputError(f"{error}; deriving exercises needs the authors' packages: pip install -e '.[dev]'") from None

    nb = read_notebook(solution)
    for cell in nb.cells:
        marks = re.findall(r"(BEGIN|END) SOLUTION", cell.source)
        if marks != ["BEGIN", "END"] * (len(marks) // 2):
            raise InputError(
                f"{solution.parent.name}/{solution.name}, {cell_label(nb, cell)}: the solution marks are "
                f"{' '.join(marks)}; each '### BEGIN SOLUTION' needs its '### END SOLUTION' before the next begins"
            )
    for preprocessor in (
        TagRemovePreprocessor(remove_cell_tags={"solution"}),
        ClearSolutions(enforce_metadata=False, code_stub={"python": STUB}, text_stub="*Your answer here.*"),
        ClearOutputPreprocessor(),
    ):
        nb, _resources = preprocessor.preprocess(nb, {})
    link = f"A right answer to each, explained: [solutions](../solutions/{solution.name})."
    nb.cells.append(nbformat.v4.new_markdown_cell(link, id="solutions"))
    nb.metadata["ddp_course"] = {
        "generated_from": f"{solution.parent.name}/{solution.name}",
        "do_not_edit": "edit the solution, then run: make exercises",
    }
    return notebook_text(nb)


def stale_exercises(root: Path = ROOT, names: list[str] | None = None) -> dict[Path, str | None]:
    """Exercise files that differ from what their solution gives: {path: expected text, None without a solution}."""
    expected: dict[Path, str | None] = {}
    if not names:
        expected |= dict.fromkeys(select(root, ("exercises",), []))
    solutions = select(root, ("solutions",), names or [])
    expected |= {root / "exercises" / path.name: exercise_text(path) for path in solutions}
    on_disk = {path: path.read_bytes() for path in expected if path.exists()}
    return {path: text for path, text in expected.items() if text is None or on_disk.get(path) != text.encode()}


def make_notebooks(root: Path, names: list[str], check: bool) -> int:
    """Refresh each notebook and the exercise derived from it, or with `check` name those with old outputs.

    A failure does not stop the others. Returns the exit code.
    """
    failures = 0
    for path in select(root, ("notebooks", "solutions"), names):
        name = path.relative_to(root).as_posix()
        if check:
            if not is_fresh(read_notebook(path)):
                failures += 1
                print(f"{name}: its code is newer than its outputs; run: make notebooks")
            continue
        try:
            seconds = refresh_notebook(path, root, functools.partial(show_progress, name))
            print(f"\r{name}  ran in {seconds:.1f} s", flush=True)
            if name == "notebooks/04_ddp.ipynb":
                (root / "docs" / "one_loss_curve.png").write_bytes(readme_picture(root))
            if path.parent.name == "solutions":  # the exercise repeats the solution's header box
                make_exercises(root, [path.stem], check=False)
        except NotebookFailed as failure:
            failures += 1
            print(f"\nFAILED, the file is as it was: {failure}", file=sys.stderr, flush=True)
    return 1 if failures else 0


def show_progress(name: str, number: int, count: int) -> None:
    """Print the number of the cell that runs, each over the last one; outside of a terminal only the count, once."""
    if sys.stdout.isatty():
        print(f"\r{name}  cell {number}/{count} ", end="", flush=True)
    elif number == 1:
        print(f"{name}  {count} cells", flush=True)


def make_exercises(root: Path, names: list[str], check: bool) -> int:
    """Write the exercises, or with `check` name those that differ from what their solutions give.

    Returns the exit code.
    """
    stale = stale_exercises(root, names)
    for path, text in stale.items():
        if text is None:
            print(f"exercises/{path.name}: there is no solutions/{path.name} it could come from")
        elif check:
            print(f"exercises/{path.name}: differs from what solutions/{path.name} gives; run: make exercises")
        else:
            replace_file(path, text)
            print(f"exercises/{path.name}  written")
    return 1 if None in stale.values() or (check and stale) else 0


def make_setup_cells(root: Path, names: list[str], check: bool) -> int:
    """Write the setup cell of each notebook, or with `check` name those where it differs. Returns the exit code."""
    stale = 0
    for path in select(root, ("notebooks", "solutions"), names):
        nb = read_notebook(path)
        old_text = notebook_text(nb)
        put_setup_cell(nb, root, path)
        if (text := notebook_text(nb)) != old_text:
            stale += 1
            name = path.relative_to(root).as_posix()
            if check:
                print(f"{name}: its setup cell is missing or old; run: python -m ddp_course.authoring setup")
                continue
            replace_file(path, text)
            print(f"{name}  written")
            if path.parent.name == "solutions":
                make_exercises(root, [path.stem], check=False)
    return 1 if check and stale else 0


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """The command line. Exit code 0: done; 1: failed or out of date; 2: bad input; 130: interrupted."""
    parser = Parser(
        prog="python -m ddp_course.authoring", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["notebooks", "exercises", "setup"])
    parser.add_argument("names", nargs="*", help="how a notebook's name starts: 04, solutions/02; default: all")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 and name what is out of date")
    try:
        options = parser.parse_intermixed_args(arguments)
        commands = {"notebooks": make_notebooks, "exercises": make_exercises, "setup": make_setup_cells}
        return commands[options.command](root, options.names, options.check)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; the notebook that was running is as it was", file=sys.stderr)
        return 130
