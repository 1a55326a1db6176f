"""The first code cell of every notebook: it gets the course on Colab and Kaggle, and elsewhere changes nothing."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from ddp_course.authoring import commands as authoring
from ddp_course.authoring.notebook_run import NotebookFailed, code_hash, read_notebook, run_notebook
from ddp_course.authoring.setup_cell import hosted_links, lesson_cells, put_setup_cell, setup_cell

pytestmark = pytest.mark.smoke

CELL = setup_cell(authoring.ROOT)
HOSTS = ("COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE")


@pytest.fixture
def hosted():
    """requirements/hosted.py, which a notebook runs as a script."""
    spec = importlib.util.spec_from_file_location("hosted", authoring.ROOT / "requirements" / "hosted.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_cell(folder: Path, *flags: str, python: str | Path = sys.executable, after: str = "", **variables: str):
    """Run the cell as a script in `folder`, with only these variables that tell of a host."""
    environment = {name: value for name, value in os.environ.items() if name not in HOSTS} | variables
    command = [python, *flags, "-c", f"{CELL.source}\n{after}"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("folder", ["notebooks", "exercises", "solutions"])
def test_where_the_course_is_installed_it_does_nothing(folder):
    run = run_cell(authoring.ROOT / folder, after=f"import os; assert os.getcwd() == {str(authoring.ROOT / folder)!r}")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_a_kernel_without_the_course_raises_one_sentence_that_says_what_to_do():
    run = run_cell(authoring.ROOT / "notebooks", "-SE")  # without site-packages and PYTHONPATH
    assert run.returncode == 1 and not run.stdout
    last = run.stderr.splitlines()[-1]
    assert last.startswith(f"RuntimeError: {sys.executable} has no ddp_course: run `make .venv/.installed`")
    assert (authoring.ROOT / "Makefile").read_text().count("\nREADY := $(VENV)/.installed\n") == 1


def test_a_notebook_shows_the_sentence_alone(tmp_path):
    nb = nbformat.v4.new_notebook()
    nb.cells = [nbformat.v4.new_code_cell("STEPS = 1", metadata={"tags": ["parameters"]})]
    put_setup_cell(nb, authoring.ROOT, Path("notebooks/01_tiny.ipynb"))
    with pytest.raises(NotebookFailed) as caught:
        run_notebook(nb, "tiny.ipynb", tmp_path)
    output = str(caught.value).partition("last lines of its output:\n")[2]
    assert output.strip() == f"Start the kernel in the folder of this notebook; it works in {tmp_path}."


@pytest.fixture
def repository(tmp_path) -> Path:
    """A repository with the folders that the cell looks for, whose requirements/hosted.py notes that it ran."""
    root = tmp_path / "origin"
    for file in ("notebooks/00.ipynb", "ddp_course/__init__.py", "doctor/ddp_doctor/__init__.py"):
        (root / file).parent.mkdir(parents=True)
        (root / file).touch()
    (root / "requirements").mkdir()
    (root / "requirements" / "hosted.py").write_text("open('installed', 'a').write('once ')")
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    for command in (["init", "--quiet"], ["add", "."], [*identity, "commit", "--quiet", "-m", "Begin"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


@pytest.mark.parametrize("host", HOSTS)
def test_on_a_host_it_clones_installs_and_changes_the_folder_once(repository, tmp_path, host):
    folder = tmp_path / "content"
    folder.mkdir()
    import_both = "import ddp_course, ddp_doctor, os; print(ddp_course.__file__, os.getcwd()); get_the_course()"
    variables = {host: "1", "DDP_COURSE_ADDRESS": str(repository)}
    clone = folder / "ddp-course"
    for runs in (1, 2):  # the second time in a new kernel
        run = run_cell(folder, "-S", after=import_both, **variables)
        assert (run.returncode, run.stderr) == (0, "")
        message, at = run.stdout.splitlines()
        assert message == f"The course is installed; the kernel now works in {clone / 'notebooks'}"
        assert at == f"{clone / 'ddp_course' / '__init__.py'} {clone / 'notebooks'}"
        assert (folder / "installed").read_text() == "once " * runs


def test_a_clone_that_fails_says_why(tmp_path):
    run = run_cell(tmp_path, COLAB_RELEASE_TAG="1", DDP_COURSE_ADDRESS=str(tmp_path / "none"))
    assert run.returncode == 1
    assert re.search(r"RuntimeError: git clone .* failed: fatal: .*none' does not exist", run.stderr)


def test_outputs_do_not_depend_on_the_cell():
    nb = nbformat.v4.new_notebook()
    nb.cells = [nbformat.v4.new_code_cell("x = 1", id="c0")]
    initial_hash = code_hash(nb)
    put_setup_cell(nb, authoring.ROOT, Path("notebooks/01_tiny.ipynb"))
    put_setup_cell(nb, authoring.ROOT, Path("notebooks/01_tiny.ipynb"))  # in place of the first
    assert [cell.id for cell in lesson_cells(nb)] == ["c0"] and nb.cells[0].id == "course-setup"
    assert code_hash(nb) == initial_hash
    assert initial_hash != code_hash(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x = 2")]))


@pytest.mark.parametrize("ending", ["", ".git", "/"])
def test_both_hosts_open_the_notebook(ending):
    address = "https://github.com/somebody/ddp-course"
    links = hosted_links(address + ending, "notebooks/04_ddp.ipynb")
    assert links == (
        "[Open in Colab](https://colab.research.google.com/github/somebody/ddp-course/blob/main/notebooks/04_ddp.ipynb)"
        f" · [Open in Kaggle](https://kaggle.com/kernels/welcome?src={address}/blob/main/notebooks/04_ddp.ipynb)"
    )


@pytest.mark.parametrize("address", [None, "https://example.org/course", "https://github.com/somebody"])
def test_no_link_that_would_lead_nowhere(address):
    assert hosted_links(address, "notebooks/04_ddp.ipynb") == ""


def test_the_authors_command_writes_the_cells_into_lessons_solutions_and_exercises(tmp_path, capsys):
    address = "https://github.com/somebody/course"
    (tmp_path / "pyproject.toml").write_text(f'[project]\nurls.Repository = "{address}"\n')
    for folder in ("notebooks", "solutions"):
        (tmp_path / folder).mkdir()
        nb = nbformat.v4.new_notebook()
        nb.cells = [nbformat.v4.new_markdown_cell("# 1", id="m"), nbformat.v4.new_code_cell("x = 1", id="c")]
        nbformat.write(nb, tmp_path / folder / "01_tiny.ipynb")
    assert authoring.main(["setup", "--check"], tmp_path) == 1
    assert "notebooks/01_tiny.ipynb: its setup cell is missing or old" in capsys.readouterr().out
    assert authoring.main(["setup"], tmp_path) == 0 and authoring.main(["setup", "--check"], tmp_path) == 0
    for folder, opened in (("notebooks", "notebooks"), ("solutions", "exercises"), ("exercises", "exercises")):
        cells = read_notebook(tmp_path / folder / "01_tiny.ipynb").cells
        end = ["solutions"] if folder == "exercises" else []
        assert [cell.id for cell in cells] == ["m", "course-links", "course-setup", "c", *end]
        assert f"src={address}/blob/main/{opened}/01_tiny.ipynb)" in cells[1].source
        assert f'"{address}"' in cells[2].source


# ---- what it installs --------------------------------------------------------------------------------------------


def test_only_what_is_missing_or_too_old_is_installed(hosted):
    needed = ["ddp-doctor", "jupyterlab>=4", "torch>=2.11,<2.16", "numpy>=2.0", "py-spy>=0.4", "psutil>=7.0"]
    there = {"torch": "2.11.0+cu128", "numpy": "2.1.3", "psutil": "5.9.5"}
    assert [str(each) for each in hosted.lacking(needed, there)] == ["py-spy>=0.4", "psutil>=7.0"]


def test_torch_is_never_replaced(hosted, monkeypatch):
    package = type("Package", (), {"name": "torch", "version": "2.10.0+cu128"})
    monkeypatch.setattr(hosted, "distributions", lambda: [package])
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("something was installed"))
    with pytest.raises(SystemExit, match=r"^The course needs torch<2.16,>=2.11; this machine has 2.10.0\+cu128$"):
        hosted.main()


def test_what_notebook_27_needs_is_installed_too(hosted, monkeypatch):
    commands = []
    monkeypatch.setattr(hosted, "distributions", lambda: [type("Package", (), {"name": "torch", "version": "2.11.0"})])
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))
    hosted.main()
    assert {"peft>=0.19", "transformers>=5"} <= set(commands[0])
