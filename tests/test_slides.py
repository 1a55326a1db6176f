"""Slides: the questions and figures of a notebook, in its order, without its code."""

import pytest

from ddp_course.authoring import slides
from ddp_course.authoring.commands import ROOT
from ddp_course.authoring.notebook_run import read_notebook

SPINE = sorted((ROOT / "notebooks").glob("0[0-9]_*.ipynb")) + sorted((ROOT / "notebooks").glob("10_*.ipynb"))


def kinds(cells):
    return [cell.metadata.slideshow.slide_type for cell in cells]


@pytest.mark.parametrize("path", SPINE, ids=lambda path: path.stem)
def test_a_lecture_has_every_figure_and_some_ten_slides(path):
    nb = read_notebook(path)
    cells = slides.slides_of(nb).cells
    figures = [
        output for cell in nb.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
    ]
    assert [output for cell in cells for output in cell.get("outputs", [])] == figures
    assert 8 <= sum(kind != "-" for kind in kinds(cells)) <= 15
    assert cells[0].source.startswith("# ") and cells[-1].source.startswith("## Summary\n\n- ")


def test_a_question_comes_first_and_its_answer_below_it():
    cells = slides.slides_of(read_notebook(ROOT / "notebooks" / "04_ddp.ipynb")).cells
    number = next(number for number, cell in enumerate(cells) if cell.source.startswith("## 4.2 "))
    question, answer = cells[number : number + 2]
    quantity = question.source.partition("*Predict:* ")[2]
    assert quantity.startswith("largest difference") and answer.source.startswith(f"{quantity}: **measured ")
    assert kinds([question, answer]) == ["slide", "subslide"]


def test_the_command_writes_pages_without_code(tmp_path, capsys):
    (tmp_path / "notebooks").mkdir()
    text = (ROOT / "notebooks" / "04_ddp.ipynb").read_text(encoding="utf-8")
    (tmp_path / "notebooks" / "04_ddp.ipynb").write_text(text, encoding="utf-8")
    assert slides.main(["04"], tmp_path) == 0
    page = (tmp_path / capsys.readouterr().out.strip()).read_text(encoding="utf-8")
    assert "Is it the same training?" in page and "init_process_group" not in page
    assert slides.main(["--all"], tmp_path) == 2 and capsys.readouterr().err.count("\n") == 1
    assert slides.main(["99"], tmp_path) == 2 and "no notebook in notebooks starts with '99'" in capsys.readouterr().err
