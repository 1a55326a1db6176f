"""Each notebook of exercises/ is what its solution gives, byte for byte, and runs to its end unsolved and solved."""

import re
import shutil
from runpy import run_path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ddp_course.authoring import commands as authoring
from ddp_course.authoring.notebook_run import NotebookFailed, output_texts, prepare_folder, read_notebook, run_notebook
from ddp_course.base.errors import InputError
from ddp_course.grader.exercises import names

CELL_LIMIT = 1200  # seconds, also on a busy machine
EXERCISES = authoring.select(authoring.ROOT, ("exercises",), [])
CHECK = re.compile(r'^check\("([\d.]+)"', re.MULTILINE)
WARM_UP = re.compile(r'^with warm_up\("([\d.]+[a-z])"', re.MULTILINE)


def test_exercises_are_what_their_solutions_give():
    stale = [f"exercises/{path.name}" for path in authoring.stale_exercises()]
    assert not stale, f"{', '.join(stale)}: edited by hand, out of date or without a solution; run: make exercises"


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_no_two_ranks_of_05_1_read_the_same_positions(ranks):
    script = run_path(str(authoring.ROOT / "solutions" / "05_sharding_data" / "1" / "given.py"))
    batch, tokens = script["BATCH"], script["TOKENS"] - script["TOKENS"] // 10
    firsts = [
        (step * ranks + rank) * batch % (tokens - batch) for step in range(script["STEPS"]) for rank in range(ranks)
    ]
    assert len(set(firsts)) == len(firsts), "its text says that every rank reads positions that no other rank reads"


def unsolved_then_solved(exercise, solution):
    """The exercise, with the cells of the solution to a question after each `check` of that question.

    One run then shows that an unsolved exercise runs and that its solution passes; the broken scripts, which are in
    both, run once. The solution's cells have ids that end in _solved. A cell after a warm-up is repeated only if an
    earlier cell of its question is, since it may not need the warm-up's answer.
    """
    unsolved = {cell.id: cell for cell in exercise.cells}
    cells, solved, differs = [], [], False
    for cell in solution.cells:
        exercise_cell = unsolved.get(cell.id, cell)
        cells.append(exercise_cell)
        if cell.cell_type == "code" and (differs or exercise_cell.source != cell.source):
            solved.append(new_code_cell(cell.source, id=f"{cell.id}_solved"))
            differs = True
        if WARM_UP.search(cell.source):
            differs = False
        if CHECK.search(cell.source):
            cells += solved
            solved, differs = [], False
    assert not solved, f"the answer in cell {solved[0].id} is never checked"
    return new_notebook(metadata=solution.metadata, cells=cells)


@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.stem)
def test_exercise_runs_unsolved_and_solved(path, tmp_path, warm_launches):
    solution = read_notebook(authoring.ROOT / "solutions" / path.name)
    nb = unsolved_then_solved(read_notebook(path), solution)
    parameters = dict(solution.metadata.ddp_course.test_parameters)
    name, folder = f"exercises/{path.name}", tmp_path / "exercises"
    folder.mkdir()
    shutil.copy(path, folder)
    (tmp_path / "ddp_course").symlink_to(authoring.ROOT / "ddp_course")
    prepare_folder(nb, name, folder)
    try:
        executed = run_notebook(nb, name, folder, parameters, CELL_LIMIT, allowed_errors=("NotImplementedError",))
    except NotebookFailed as failure:
        pytest.fail(str(failure), pytrace=False)
    verdicts, warm_ups, ids = {}, {}, {cell.id for cell in executed.cells}
    for cell in executed.cells:
        printed = "\n".join(output_texts(cell))
        if f"{cell.id}_solved" not in ids:
            assert "NotImplementedError" not in printed, (
                f"{name}, cell {cell.id} is not solved, or needs an answer that is not there yet"
            )
        if match := CHECK.search(cell.source):
            verdicts.setdefault(match[1], []).append(printed)
        if match := WARM_UP.search(cell.source):
            warm_ups.setdefault(match[1], []).append(printed.strip())
    assert list(verdicts) == [question for question in names() if question.startswith(path.stem[:2])]
    for question, (unsolved, solved) in verdicts.items():
        assert f"{question} not attempted" in unsolved, unsolved
        assert f"{question} passed" in solved, solved
    expected = [f"{path.stem[:2]}.{letter}" for letter in "ab"]
    assert warm_ups == {name: [f"warm-up {name} not attempted", f"warm-up {name} passed"] for name in expected}


# ---- deriving, on a small solution -------------------------------------------------------------------------------

SCRIPT = """%%writefile answers/02_1.py
def total(values):
    # Exercise 2.1: sum over all ranks.
    ### BEGIN SOLUTION
    secret = sum(values)
    return secret
    ### END SOLUTION


print(total([1, 2]))"""


def solution_notebook():
    nb = new_notebook()
    nb.cells = [
        new_markdown_cell("# Exercises 2\n\nOne script."),
        new_code_cell("STEPS = 3", metadata={"tags": ["parameters"]}),
        new_code_cell(SCRIPT, execution_count=2, outputs=[new_output("stream", text="Writing\n")]),
        new_markdown_cell("Because 1 + 2 is 3: the secret.", metadata={"tags": ["solution"]}),
        new_code_cell("### BEGIN SOLUTION\nx = 'secret'\n### END SOLUTION\nprint(x)"),
    ]
    for number, cell in enumerate(nb.cells):
        cell.id = f"c{number}"
    nb.metadata["ddp_course"] = {"code_hash": "abc", "seconds": 1.0, "test_parameters": {"STEPS": 1}}
    return nb


@pytest.fixture
def course(tmp_path):
    (tmp_path / "solutions").mkdir()
    nbformat.write(solution_notebook(), tmp_path / "solutions" / "02_ranks.ipynb")
    return tmp_path


def test_the_solution_is_gone_and_the_rest_is_there(course):
    assert authoring.main(["exercises"], course) == 0
    path = course / "exercises" / "02_ranks.ipynb"
    nb = read_notebook(path)
    assert "secret" not in path.read_text()
    assert [cell.id for cell in nb.cells] == ["c0", "c1", "c2", "c4", "solutions"]
    assert "(../solutions/02_ranks.ipynb)" in nb.cells[-1].source
    assert nb.cells[2].source.splitlines() == [
        "%%writefile answers/02_1.py",
        "def total(values):",
        "    # Exercise 2.1: sum over all ranks.",
        '    raise NotImplementedError("your turn")',
        "",
        "",
        "print(total([1, 2]))",
    ]
    assert nb.cells[3].source == 'raise NotImplementedError("your turn")\nprint(x)'
    assert all(not cell.outputs and cell.execution_count is None for cell in nb.cells if cell.cell_type == "code")
    assert nb.metadata.ddp_course["generated_from"] == "solutions/02_ranks.ipynb"
    assert set(nb.metadata.ddp_course) == {"generated_from", "do_not_edit"}


def test_check_names_the_notebooks_that_differ(course, capsys):
    path = course / "exercises" / "02_ranks.ipynb"
    assert authoring.main(["exercises", "--check"], course) == 1
    assert not path.exists(), "--check wrote a file"
    assert "exercises/02_ranks.ipynb" in capsys.readouterr().out

    authoring.main(["exercises"], course)
    first = path.read_bytes()
    path.unlink()
    authoring.main(["exercises", "02"], course)
    assert path.read_bytes() == first
    assert authoring.main(["exercises", "--check"], course) == 0

    path.write_bytes(first + b"\n")
    assert authoring.main(["exercises", "--check"], course) == 1
    path.write_bytes(first)
    (course / "exercises" / "03_orphan.ipynb").write_bytes(first)
    capsys.readouterr()
    assert authoring.main(["exercises", "--check"], course) == 1
    assert "exercises/03_orphan.ipynb: there is no solutions/03_orphan.ipynb" in capsys.readouterr().out


@pytest.mark.parametrize("lines", ["x = 1\n### END SOLUTION", "### BEGIN SOLUTION\nx = 1", "### BEGIN SOLUTION\n" * 2])
def test_marks_that_do_not_pair_up_are_named(course, lines):
    nb = solution_notebook()
    nb.cells[4].source = lines
    path = course / "solutions" / "02_ranks.ipynb"
    nbformat.write(nb, path)
    with pytest.raises(InputError, match=r"solutions/02_ranks.ipynb, cell 5 of 5 \(id c4"):
        authoring.exercise_text(path)
