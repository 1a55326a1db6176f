"""Every notebook runs from top to bottom with its test parameters; and what runs them says plainly what failed."""

import json
import math
import re
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace

import nbformat
import psutil
import pytest

from ddp_course.authoring import commands as authoring
from ddp_course.authoring.notebook_run import (
    NotebookFailed,
    cell_label,
    code_hash,
    is_fresh,
    prepare_folder,
    read_notebook,
    run_notebook,
)
from ddp_course.lab import figures
from ddp_course.lab.table import table


def stored_seconds(path: Path) -> float:
    return json.loads(path.read_text(encoding="utf-8"))["metadata"].get("ddp_course", {}).get("seconds", 0)


# Without solutions: see test_exercises.py. xdist hands a worker up to three at a time: in turn a long, a middle and a
# short one, so that no worker gets three long ones, for which the others wait at the end.
BY_SECONDS = sorted(authoring.select(authoring.ROOT, ("notebooks",), []), key=stored_seconds, reverse=True)
THIRD = -(-len(BY_SECONDS) // 3)
NOTEBOOKS = [path for first in range(THIRD) for path in BY_SECONDS[first::THIRD]]
HANG = 1200  # seconds of a cell: nothing that will end takes longer, on however busy a machine
# These look for the ranks that torchrun started, which has to be their parent: in all launches, or in that of a script.
COLD_COMMAND = {"10": "torch.distributed.run", "11": "scripts/11_served.py", "21": "torch.distributed.run"}
MOST_CPU_SECONDS = 300  # of a notebook: a busy machine adds to its hours, and hardly to these


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_notebook_runs(path, tmp_path, monkeypatch, warm_launches):
    number = path.stem.partition("_")[0]
    if number in COLD_COMMAND:
        monkeypatch.setenv("COLD_COMMAND", COLD_COMMAND[number])
    start = cpu_seconds_of_children(warm_launches)
    run_with_test_parameters(path, tmp_path, monkeypatch)
    seconds = cpu_seconds_of_children(warm_launches) - start
    assert seconds < MOST_CPU_SECONDS, f"{path.stem} computes for {seconds:.0f} s: give it smaller test parameters"


@pytest.mark.weekly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_with_processes_started_as_for_a_reader(path, tmp_path, monkeypatch):
    run_with_test_parameters(path, tmp_path, monkeypatch)


def run_with_test_parameters(path, tmp_path, monkeypatch):
    threads = tmp_path / "threads_at_exit"
    monkeypatch.setenv("THREADS_AT_EXIT", str(threads))  # see startup/sitecustomize.py
    nb = read_notebook(path)
    name = f"{path.parent.name}/{path.name}"
    folder = tmp_path / path.parent.name
    folder.mkdir()
    for neighbour in path.parent.glob("*.ipynb"):  # a notebook may quote another one
        shutil.copy(neighbour, folder)
    (tmp_path / "ddp_course").symlink_to(authoring.ROOT / "ddp_course")  # notebooks say ../ddp_course/minigpt_ddp.py
    prepare_folder(nb, name, folder)
    try:
        parameters = dict(nb.metadata.ddp_course.test_parameters)
        run_notebook(nb, name, folder, parameters, cell_seconds=HANG)
    except NotebookFailed as failure:
        pytest.fail(str(failure), pytrace=False)
    if threads.exists():
        pytest.fail(
            f"{name}: threads of gloo are left at the end of these scripts, which can abort them (04, section "
            f"4.1):\n{threads.read_text()}",
            pytrace=False,
        )


def test_notebook_02b_holds_where_the_system_counts_no_bytes():
    nb = read_notebook(authoring.ROOT / "notebooks" / "02b_every_collective.ipynb")
    cells = {cell.id: cell.source for cell in nb.cells}
    calls = re.findall(r'^    "(.*)": (?:lambda|by_hand)', cells["write-bytes"], re.MULTILINE)
    assert {"all_reduce", "reduce_scatter by hand"} < set(calls)
    run = SimpleNamespace(results={rank: dict.fromkeys(calls, math.nan) | {"gap": 0.0} for rank in range(3)})
    scope = {"torchrun": lambda *_, **__: run, "PICTURED": 3, "figures": figures, "table": table}
    scope["scatter_cost"] = SimpleNamespace(reveal=str)
    for cell in ("run-bytes", "bytes-table", "show-gap"):
        exec(cells[cell], scope)


def cpu_seconds_of_children(server: psutil.Process | None = None) -> float:
    """CPU time of the children that have ended and were waited for, with theirs; of `server`'s children, too."""
    if server:
        psutil.wait_procs(server.children())  # what it has forked counts once it has waited for that
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    forked = server.cpu_times() if server else None
    return spent.ru_utime + spent.ru_stime + (forked.children_user + forked.children_system if forked else 0)


# ---- the runner and `make notebooks`, on small notebooks that are right or wrong in one way ----------------------


def notebook(*cells: str | nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A notebook with a parameters cell (STEPS = 100) and the given code cells, ids c0, c1, ..."""
    nb = nbformat.v4.new_notebook()
    nb.cells = [nbformat.v4.new_code_cell("STEPS = 100", metadata={"tags": ["parameters"]})]
    nb.cells += [nbformat.v4.new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    for number, cell in enumerate(nb.cells):
        cell.id = f"c{number}"
    return nb


def test_injects_parameters_and_keeps_what_children_print(tmp_path):
    nb = notebook(
        "import subprocess\nprint('steps', STEPS)\n_ = subprocess.run('echo from a child; sleep 0.5', shell=True)",
        "%%writefile scripts/one.py\nprint('from a script')",
        "print(open('scripts/one.py').read())",
    )
    prepare_folder(nb, "tiny.ipynb", tmp_path)
    executed = run_notebook(nb, "tiny.ipynb", tmp_path, {"STEPS": 2})
    outputs = {cell.id: cell.outputs[0].text for cell in executed.cells if cell.id in ("c1", "c2", "c3")}
    assert outputs["c1"] == "steps 2\nfrom a child\n"  # a plain child's output is lost if the kernel knows of pytest
    assert outputs["c2"] == "Writing scripts/one.py\n"
    assert "from a script" in outputs["c3"]
    assert all("outputs" not in cell or not cell.outputs for cell in nb.cells), "the given notebook was changed"


def test_failure_names_notebook_cell_and_last_twenty_lines(tmp_path):
    nb = notebook("for i in range(40):\n    print('line', i)\nprint(1 / 0)", "print('never')")
    with pytest.raises(NotebookFailed) as caught:
        run_notebook(nb, "notebooks/03_tiny.ipynb", tmp_path)
    message = str(caught.value)
    first, _, *tail = message.splitlines()
    assert "notebooks/03_tiny.ipynb, cell 2 of 3 (id c1: for i in range(40):)" in first
    assert "ZeroDivisionError: division by zero" in first
    assert len(tail) == 20
    assert "line 39" in message and "line 20" not in message
    assert "\x1b" not in message


def test_a_cell_that_takes_too_long_is_interrupted_and_cleans_up(tmp_path):
    cell = "import time\ntry:\n    time.sleep(3600)\nfinally:\n    open('cleaned_up', 'w').close()"
    with pytest.raises(NotebookFailed, match=r"cell 2 of 2 .*took longer than 1 s and was interrupted"):
        run_notebook(notebook(cell), "tiny.ipynb", tmp_path, cell_seconds=1)
    assert (tmp_path / "cleaned_up").exists()


def test_a_dead_kernel_is_noticed_at_once(tmp_path):
    nb = notebook("import os, signal\nprint('last words', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(NotebookFailed, match=r"tiny.ipynb, cell 2 of 2 .*the kernel died"):
        run_notebook(nb, "tiny.ipynb", tmp_path, cell_seconds=HANG)


def test_allowed_error_lets_the_next_cell_run_and_no_other_does(tmp_path):
    nb = notebook("raise NotImplementedError('your turn')", "print('steps', STEPS)", "print(missing)")
    with pytest.raises(NotebookFailed, match="cell 4 of 4 .*NameError"):
        run_notebook(nb, "tiny.ipynb", tmp_path, {"STEPS": 3}, allowed_errors=("NotImplementedError",))
    del nb.cells[3]
    executed = run_notebook(nb, "tiny.ipynb", tmp_path, {"STEPS": 3}, allowed_errors=("NotImplementedError",))
    assert executed.cells[-1].outputs[0].text == "steps 3\n"


HEADER = "# Tiny\n\nRuns in: <!-- measured -->not measured<!-- /measured -->."


@pytest.fixture
def course(tmp_path) -> Path:
    """A course folder with one notebook, notebooks/01_tiny.ipynb, that has never run."""
    nb = notebook(nbformat.v4.new_markdown_cell(HEADER), "%%writefile scripts/one.py\nx = 1", "print('steps', STEPS)")
    nb.metadata["ddp_course"] = {"test_parameters": {"STEPS": 1}}
    nb.metadata["papermill"] = {"start_time": "today"}
    (tmp_path / "notebooks").mkdir()
    nbformat.write(nb, tmp_path / "notebooks" / "01_tiny.ipynb")
    return tmp_path


def test_make_notebooks_writes_outputs_stamp_and_nothing_else(course, capsys):
    path = course / "notebooks" / "01_tiny.ipynb"
    assert authoring.main(["notebooks", "--check"], course) == 1
    assert "notebooks/01_tiny.ipynb" in capsys.readouterr().out

    assert authoring.main(["notebooks", "01"], course) == 0
    nb = read_notebook(path)
    assert [cell.id for cell in nb.cells] == ["c0", "c1", "c2", "c3"]  # no injected cell, no new ids
    assert nb.cells[3].outputs[0].text == "steps 100\n"  # the reader's parameters
    assert set(nb.metadata) == {"ddp_course", "kernelspec", "language_info"}
    assert nb.metadata.ddp_course.test_parameters == {"STEPS": 1}
    assert is_fresh(nb)
    assert all("papermill" not in cell.metadata for cell in nb.cells)
    expected = authoring.measured_text(nb.metadata.ddp_course)
    assert nb.cells[1].source == HEADER.replace("not measured", expected)
    assert re.match(r"\*\*about \d+ s\*\* on \d+ cores?", expected)  # how many seconds is this machine's affair
    assert authoring.main(["notebooks", "--check"], course) == 0

    assert authoring.main(["notebooks"], course) == 0
    again = read_notebook(path)
    nb.metadata.ddp_course.seconds = again.metadata.ddp_course.seconds
    nb.cells[1].source = HEADER.replace("not measured", authoring.measured_text(nb.metadata.ddp_course))
    assert again == nb, "a second run changed more than the measured time"

    nb.cells[1].source += " More prose."
    assert is_fresh(nb)
    nb.cells[3].source += "  # edited"
    assert not is_fresh(nb)


def test_make_notebooks_leaves_a_failing_notebook_as_it_was(course, capsys):
    path = course / "notebooks" / "02_broken.ipynb"
    nbformat.write(notebook("print('before')\nprint(missing)"), path)
    content = path.read_bytes()
    assert authoring.main(["notebooks", "02"], course) == 1
    assert path.read_bytes() == content
    errors = capsys.readouterr().err
    assert "notebooks/02_broken.ipynb, cell 2 of 2 (id c1" in errors and "NameError" in errors and "before" in errors


def test_make_notebooks_refuses_a_path_of_this_machine(course, capsys):
    path = course / "notebooks" / "02_leak.ipynb"
    nbformat.write(notebook("import os\nprint('now in', os.getcwd())"), path)
    content = path.read_bytes()
    assert authoring.main(["notebooks", "02"], course) == 1
    assert path.read_bytes() == content
    message = f"notebooks/02_leak.ipynb, cell 2 of 2 (id c1: import os): an output holds {course}"
    assert message in capsys.readouterr().err


def test_names_that_fit_nothing_are_named(course, capsys):
    assert authoring.main(["notebooks", "07"], course) == 2
    assert "'07'" in capsys.readouterr().err
    assert [path.stem for path in authoring.select(course, ("notebooks",), ["notebooks/01"])] == ["01_tiny"]


def test_a_cell_may_not_write_just_anywhere(tmp_path):
    (tmp_path / "kept.py").write_text("x = 1")
    for destination in ("kept.py", "../kept.py", "scripts/../../kept.py", str(tmp_path / "kept.py")):
        with pytest.raises(NotebookFailed, match="scripts/ or answers/"):
            prepare_folder(notebook(f"%%writefile {destination}\nx = 2"), "tiny.ipynb", tmp_path)
    assert (tmp_path / "kept.py").read_text() == "x = 1"


def test_ids_hash_and_labels_are_stable(tmp_path):
    nb = notebook("a = 1", "b = 2")
    raw = nbformat.writes(nb)
    path = tmp_path / "no_ids.ipynb"
    path.write_text("\n".join(line for line in raw.splitlines() if '"id":' not in line))
    assert [cell.id for cell in read_notebook(path).cells] == [cell.id for cell in read_notebook(path).cells]
    assert code_hash(notebook("a = 1", "b = 2")) != code_hash(notebook("a = 1\nb = 2"))
    assert cell_label(nb, nb.cells[2]) == "cell 3 of 3 (id c2: b = 2)"


def test_outputs_are_tidied():
    def stream(text, name="stdout"):
        return nbformat.v4.new_output("stream", name=name, text=text)

    figure = nbformat.v4.new_output("display_data", data={"text/plain": "figure"})
    widget = nbformat.v4.new_output("display_data", data={authoring.WIDGET_VIEW: {}, "text/plain": "0%"})
    progress = [stream(" 10%\r 90%", "stderr"), stream("\r100%\n", "stderr")]
    tidy = authoring.tidy_outputs([stream("a\n"), stream("b\n"), *progress, stream("c\r\n"), figure, widget])
    assert [output.get("text") for output in tidy] == ["a\nb\n", "100%\n", "c\n", None]
    assert tidy[-1] == figure
