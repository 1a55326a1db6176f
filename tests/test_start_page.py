"""A reader's progress is kept only in the folder that `make lab` names; the start page shows it."""

import nbformat
import pytest

from ddp_course.authoring.commands import ROOT
from ddp_course.grader import progress
from ddp_course.grader.warm_up import warm_up
from ddp_course.lab import predict as predicting
from ddp_course.lab import start_page
from ddp_course.lab.course_map import ANSWERS, course_map
from ddp_course.lab.predict import predict, scoreboard

pytestmark = pytest.mark.smoke


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The progress folder of a small course; this process is the kernel of a notebook that `make lab` opened."""
    for name in ("notebooks/02_ranks.ipynb", "notebooks/02b_ranks.ipynb", "exercises/02_ranks.ipynb"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(predicting, "_predictions", {})
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "progress"))
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "notebooks" / "02_ranks.ipynb"))
    return tmp_path / "progress"


def rows(folder):
    return [line for line in start_page.table(folder, folder.parent).data.splitlines() if line.startswith("| [")]


def test_without_the_folder_nothing_is_written(folder, monkeypatch):
    monkeypatch.delenv(progress.VARIABLE)
    predict("How many?", default=3).reveal(4)
    scoreboard()
    assert not folder.exists() and progress.read(folder) == []
    assert start_page.table(folder, folder.parent).data.startswith("Nothing yet.")


def test_the_page_shows_what_was_done(folder, monkeypatch):
    unseen = rows(folder)
    predict("How many?")
    predict("How many?", default=3).reveal(4)
    predict("How long?")
    assert "| begun | 1 of 2 | [exercises](../exercises/02_ranks.ipynb) |" in rows(folder)[0]
    scoreboard()
    monkeypatch.setenv("JPY_SESSION_NAME", str(folder.parent / "exercises" / "02_ranks.ipynb"))
    predict("what the exercise asks", default=1)  # is no prediction of the lesson
    for total in (4, 3, 5):
        with warm_up("02.a"):
            if total != 3:
                raise AssertionError("it is 3")
    spine, deep = rows(folder)
    assert "| finished | 1 of 2 |" in spine and "02.a passed |" in spine
    assert deep == unseen[1] and deep.endswith("|  |  |  |")
    assert "1 notebook(s) finished, 1 question(s) passed." in start_page.table(folder, folder.parent).data


def test_a_line_that_is_torn_is_left_out(folder):
    predict("How many?", default=3)
    with open(folder / progress.FILE, "a") as file:
        file.write('null\n{"kind": "finis')
    assert [line["kind"] for line in progress.read(folder)] == ["predicted"]


def test_a_lesson_continues_where_nothing_can_be_written(folder, capsys):
    folder.write_text("a file where the folder should be")
    predict("How many?", default=3)
    assert "your prediction: 3" in capsys.readouterr().out


def test_the_page_is_a_notebook_whose_cell_shows_the_table(folder, capsys, monkeypatch):
    predict("How many?", default=3)
    assert start_page.main([str(folder)]) == 0
    nb = nbformat.read(folder / start_page.PAGE, as_version=4)
    nbformat.validate(nb)
    monkeypatch.chdir(folder)
    names = {}
    exec(nb.cells[1].source.rpartition("\n")[0], names)
    again = eval(nb.cells[1].source.splitlines()[-1], names).data
    assert nb.cells[1].outputs[0].data["text/markdown"] == again and "00 your lab" in again
    assert start_page.main([]) == 2 and "one folder" in capsys.readouterr().err


def test_every_link_of_the_page_leads_somewhere_and_git_ignores_the_folder():
    shown = start_page.table(ROOT / "progress").data
    links = {part.split(")")[0] for part in shown.split("](")[1:]}
    assert len(links) > 30 and all((ROOT / "progress" / link).resolve().exists() for link in links)
    assert "/progress/" in (ROOT / ".gitignore").read_text().splitlines()
    assert "progress/start_here.ipynb" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("page", [lambda: course_map().data, lambda: start_page.table(ROOT / "progress").data])
def test_the_map_names_every_notebook_with_its_answer_and_all_exercises(page):
    rows = page().splitlines()
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    assert list(ANSWERS) == [path.name.partition("_")[0] for path in notebooks]
    for path in notebooks:
        [row] = [row for row in rows if row.startswith("| ") and f"{path.name})" in row.partition("exercises/")[0]]
        assert f"| {ANSWERS[path.name.partition('_')[0]]} |" in row
    for path in (ROOT / "exercises").glob("*.ipynb"):
        assert sum(f"](../exercises/{path.name})" in row for row in rows) == 1
