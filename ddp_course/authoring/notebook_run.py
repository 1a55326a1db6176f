"""Read, hash and run a notebook: shared by the authors' commands (authoring/commands.py) and the tests."""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from ddp_course.authoring.setup_cell import lesson_cells
from ddp_course.base.errors import InputError
from ddp_course.lab.source import written_files

INTERRUPT_GRACE_SECONDS = 25  # for a launcher to end its ranks: terminate, wait, kill, sweep
ANSI_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
WRITE_FOLDERS = ("scripts", "answers")  # ignored by git; the only places a cell may write a file to


class NotebookFailed(Exception):
    """A notebook did not run to its end, or its outputs must not be kept; the message names notebook and cell."""


def read_notebook(path: Path) -> NotebookNode:
    """The notebook at `path`. A cell without an id, or with one used before, gets a hash of its index and text as id.

    Raises InputError if the file is no notebook of format 4.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        version, cells = raw["nbformat"], raw["cells"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a notebook: {type(error).__name__}: {error}") from None
    if version != 4:
        raise InputError(f"{path} has notebook format {version}; save it in format 4")
    ids = {None}
    for index, cell in enumerate(cells):
        if cell.get("id") in ids:
            cell["id"] = hashlib.sha256(f"{index}\0{''.join(cell['source'])}".encode()).hexdigest()[:8]
        ids.add(cell["id"])
    raw["nbformat_minor"] = 5  # the first minor version with cell ids
    return nbformat.reads(json.dumps(raw), as_version=4)


def notebook_text(nb: NotebookNode) -> str:
    """The text of a notebook's file: equal notebooks have equal texts."""
    nbformat.validate(nb)
    return nbformat.writes(nb, version=4).rstrip("\n") + "\n"


def code_hash(nb: NotebookNode) -> str:
    """sha256 (hex) over the sources of the code cells, in order. Prose can be edited without a new run.

    The setup cell is left out: it does nothing where outputs are made, and depends on the repository's address.
    """
    sources = [cell.source for cell in lesson_cells(nb) if cell.cell_type == "code"]
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()


def is_fresh(nb: NotebookNode) -> bool:
    """Whether the outputs were written by the present code of the notebook."""
    return nb.metadata.get("ddp_course", {}).get("code_hash") == code_hash(nb)


def prepare_folder(nb: NotebookNode, name: str, folder: Path) -> None:
    """Make `folder` ready for the notebook's `%%writefile` cells: their folders exist, their files do not.

    Without old files a cell cannot read what an earlier run left, and it always prints "Writing", never
    "Overwriting". Raises NotebookFailed for a destination outside scripts/ and answers/, and deletes nothing there.
    """
    for cell, destination, _text in written_files(nb):
        parts = Path(destination).parts
        if len(parts) < 2 or parts[0] not in WRITE_FOLDERS or ".." in parts:
            raise NotebookFailed(
                f"{name}, {cell_label(nb, cell)}: writes {destination}; a cell writes to scripts/ or answers/ only"
            )
        target = folder / destination
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)


def kernel_manager_class(private_folder: str) -> type:
    """A kernel manager class whose kernels do not depend on the user's settings or on other kernels that run here.

    Sockets are files in `private_folder`, not ports that two runs could both pick. The kernel is this interpreter,
    whatever kernels the user has installed, without the user's IPython start-up files. Two variables are removed from
    its environment: with PYTEST_CURRENT_TEST ipykernel does not show what child processes print, and MPLBACKEND could
    choose a backend that does not show figures.
    """
    from ipykernel.kernelspec import get_kernel_dict
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    class PrivateKernelManager(AsyncKernelManager):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self._kernel_spec = KernelSpec(**get_kernel_dict())
            self.shutdown_wait_time = INTERRUPT_GRACE_SECONDS
            self.transport = "ipc" if os.name == "posix" else "tcp"
            self.connection_file = os.path.join(private_folder, "kernel.json")

        async def start_kernel(self, **kwargs):
            environment = {**os.environ, "IPYTHONDIR": private_folder}
            for name in ("PYTEST_CURRENT_TEST", "MPLBACKEND"):
                environment.pop(name, None)
            await super().start_kernel(env=environment, **kwargs)

    return PrivateKernelManager


def run_notebook(
    nb: NotebookNode,
    name: str,
    folder: Path,
    parameters: dict | None = None,
    cell_seconds: int = 1800,
    allowed_errors: tuple[str, ...] = (),
    on_cell: Callable[[int, int], None] = lambda number, count: None,
) -> NotebookNode:
    """Run a copy of `nb` in a fresh kernel with `folder` as working directory and return the executed copy.

    name            of the notebook, in error messages
    parameters      values for the cell tagged `parameters`, injected by papermill; None keeps those of the cell
    cell_seconds    the longest time for one cell. A cell that takes longer is interrupted, as by the stop button, so
                    that its launcher can end its ranks.
    allowed_errors  names of exceptions after which the run continues with the next cell
    on_cell         called with (cell number from 1, number of cells) before each cell

    Raises NotebookFailed with the names of notebook and cell and the last 20 lines of the cell's output.
    """
    import papermill
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    order = [cell.id for cell in nb.cells]
    running: dict = {"cell": None, "error": ""}

    def cell_starts(cell, cell_index):
        running["cell"] = cell
        if cell.id in order:
            on_cell(order.index(cell.id) + 1, len(order))

    def cell_fails(cell, cell_index, execute_reply):
        running["error"] = execute_reply["content"]["ename"]

    def failed(problem: str) -> NotebookFailed:
        return NotebookFailed(failure_message(nb, name, running["cell"], problem))

    too_long = f"took longer than {cell_seconds} s and was interrupted"
    # papermill only injects the parameters: run by it, a notebook would fail at its end for an allowed error, too
    prepared = papermill.execute_notebook(
        nb, None, parameters, prepare_only=True, kernel_name="python3", language="python", progress_bar=False
    )
    with tempfile.TemporaryDirectory(prefix="ddp-kernel-") as private_folder:
        client = NotebookClient(
            prepared,
            resources={"metadata": {"path": str(folder)}},
            kernel_manager_class=kernel_manager_class(private_folder),
            timeout=cell_seconds,
            interrupt_on_timeout=True,
            error_on_timeout={"ename": "CellTookTooLong", "evalue": "", "traceback": []},
            iopub_timeout=INTERRUPT_GRACE_SECONDS,
            record_timing=False,
            store_widget_state=False,
            on_cell_start=cell_starts,
            on_cell_error=cell_fails,
            allow_error_names=list(allowed_errors),
        )
        try:
            return client.execute()
        except CellExecutionError as error:
            if running["error"] == "CellTookTooLong":
                raise failed(too_long) from None
            raise failed(f"{error.ename}: {ANSI_ESCAPE.sub('', error.evalue)}") from None
        except CellTimeoutError:
            raise failed(f"{too_long}, but went on; its kernel was ended") from None
        except DeadKernelError:
            raise failed("the kernel died: out of memory, killed, or a crash in native code") from None
        except RuntimeError as error:  # the kernel never answered
            raise failed(f"the kernel did not start: {error}") from None


def cell_label(nb: NotebookNode, cell: NotebookNode) -> str:
    """A cell's number among all cells, from 1, its id, and its first line, for messages."""
    order = [other.id for other in nb.cells]
    if cell.id not in order:
        return f"injected test parameters ({'; '.join(cell.source.splitlines()[1:])})"
    first_line = (cell.source.splitlines() or [""])[0][:70]
    return f"cell {order.index(cell.id) + 1} of {len(order)} (id {cell.id}: {first_line})"


def failure_message(nb: NotebookNode, name: str, cell: NotebookNode | None, problem: str) -> str:
    """The notebook, the cell, what went wrong, and the last 20 lines of the cell's output."""
    if cell is None:
        return f"{name}: {problem}"
    lines = [line for text in output_texts(cell, readable_only=True) for line in text.splitlines()][-20:]
    tail = "\n".join(f"    {line}" for line in lines or ["(no output)"])
    return f"{name}, {cell_label(nb, cell)}: {problem}\n  last lines of its output:\n{tail}"


def output_texts(cell: NotebookNode, readable_only: bool = False) -> list[str]:
    """The texts in a cell's outputs, without terminal colours and raster images; with or without HTML and SVG."""
    texts = []
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            texts.append(output.text)
        elif output.output_type == "error":
            texts.append("\n".join(output.traceback) or f"{output.ename}: {output.evalue}")
        else:
            for kind, data in sorted(output.data.items()):
                raster = kind.startswith("image/") and kind != "image/svg+xml"
                if isinstance(data, str) and not raster and (kind == "text/plain" or not readable_only):
                    texts.append(data)
    return [ANSI_ESCAPE.sub("", text) for text in texts]
