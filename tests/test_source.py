"""Shown source and differences: the lines and their numbers, and HTML that is safe and self-contained."""

import functools
import inspect
import linecache
import re
from html.parser import HTMLParser

import nbformat
import pytest
import torch
from matplotlib import colors
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from ddp_course.base import errors
from ddp_course.base.errors import InputError
from ddp_course.lab import source
from ddp_course.lab.source import show_diff, show_source, write_script

pytestmark = pytest.mark.smoke


class Reader(HTMLParser):
    """Checks that tags close in order; collects text, tags and attributes."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], set(), set(), ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def body(shown):
    """The lines of a shown source or difference below its heading, as plain text."""
    return repr(shown).splitlines()[1:]


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_a_file_is_shown_with_its_line_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "step.py", ["import torch", "", "loss.backward()"])
    shown = show_source("step.py")
    assert repr(shown) == "step.py\n1  import torch\n2\n3  loss.backward()"
    assert repr(show_source(tmp_path / "step.py")) == repr(shown)  # the folders of this machine are not shown


def test_a_function_keeps_the_numbers_of_its_file():
    code, first = inspect.getsourcelines(show_source)
    lines = body(show_source(show_source))
    width = len(str(first + len(code) - 1))
    assert len(lines) == len(code) and lines[0] == f"{first:>{width}}  {code[0].rstrip()}"
    assert repr(show_source(show_source)).startswith("ddp_course/lab/source.py · show_source\n")


def test_modules_classes_and_methods_of_installed_packages_are_named_inside_their_package():
    assert repr(show_source(errors)).startswith("ddp_course/base/errors.py\n 1  ")
    assert repr(show_source(InputError)).startswith("ddp_course/base/errors.py · InputError\n")
    shown = show_source(torch.nn.parallel.DistributedDataParallel.no_sync)
    assert repr(shown).startswith("torch/nn/parallel/distributed.py · DistributedDataParallel.no_sync\n")


def test_a_decorated_function_shows_what_it_wraps():
    @functools.wraps(show_diff)
    def wrapper():
        pass

    assert repr(show_source(wrapper)) == repr(show_source(show_diff))


def test_a_function_of_a_cell_is_named_after_the_notebook(monkeypatch):
    cell = "def answer():\n    return 42\n"
    monkeypatch.setitem(linecache.cache, "/tmp/ipykernel_1/2.py", (len(cell), None, cell.splitlines(True), ""))
    names = {"__name__": "__main__"}
    exec(compile(cell, "/tmp/ipykernel_1/2.py", "exec"), names)
    assert repr(show_source(names["answer"])) == "this notebook · answer\n1  def answer():\n2      return 42"


def test_lines_selects_by_the_numbers_of_the_file(tmp_path):
    path = write(tmp_path / "ten.py", [f"x = {i}" for i in range(1, 11)])
    assert body(show_source(path, lines=(9, 10))) == [" 9  x = 9", "10  x = 10"]
    first = inspect.getsourcelines(show_source)[1]
    assert len(body(show_source(show_source, lines=(first + 1, first + 2)))) == 2
    for bad in [(0, 2), (5, 4), (9, 11)]:
        with pytest.raises(InputError, match="1 to 10"):
            show_source(path, lines=bad)


@pytest.mark.parametrize("thing", [len, 3, functools.partial(print)])
def test_what_has_no_source_is_refused(thing):
    with pytest.raises(InputError, match="no Python source"):
        show_source(thing)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        show_source(tmp_path / "missing.py")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        show_source(tmp_path / "binary.py")
    with pytest.raises(InputError, match="directory"):
        show_diff(tmp_path, tmp_path)


OLD = [f"x{i} = {i}" for i in range(30)]


def test_a_difference_shows_changed_lines_with_context_and_folds_the_rest(tmp_path):
    new = [*OLD[:10], "y = 'new'", "z = 1", *OLD[11:]]
    shown = show_diff(write(tmp_path / "old.py", OLD), write(tmp_path / "new.py", new))
    heading, *lines = repr(shown).splitlines()
    assert heading == "old.py → new.py: 2 lines added, 1 removed"
    assert lines == [
        "  ... 7 lines unchanged",
        " 8   x7 = 7",
        " 9   x8 = 8",
        "10   x9 = 9",
        "11 - x10 = 10",
        "11 + y = 'new'",
        "12 + z = 1",
        "13   x11 = 11",
        "14   x12 = 12",
        "15   x13 = 13",
        "  ... 16 lines unchanged",
    ]


def test_unchanged_lines_and_shown_lines_add_up(tmp_path):
    new = ["first", *OLD[:5], *OLD[7:20], "mid", *OLD[20:], "last"]
    shown = show_diff(write(tmp_path / "old.py", OLD), write(tmp_path / "new.py", new))
    lines = body(shown)
    folded = sum(int(re.search(r"\d+", line)[0]) for line in lines if "..." in line)
    kept = [line for line in lines if "..." not in line]
    signs = [line[3] if len(line) > 3 else " " for line in kept]
    assert signs.count("+") == 3 and signs.count("-") == 2
    assert folded + signs.count(" ") + signs.count("+") == len(new)
    assert folded + signs.count(" ") + signs.count("-") == len(OLD)


def test_equal_files_say_so_in_one_line(tmp_path):
    path = write(tmp_path / "same.py", OLD)
    assert repr(show_diff(path, path)) == "same.py → same.py: no difference\n  ... 30 lines unchanged"


def test_one_line_is_counted_in_the_singular(tmp_path):
    shown = show_diff(write(tmp_path / "a.py", ["x"]), write(tmp_path / "b.py", ["x", "y"]))
    assert "1 line added, 0 removed" in repr(shown)


def test_added_lines_are_green_and_removed_lines_red(tmp_path):
    shown = show_diff(write(tmp_path / "a.py", ["same", "old"]), write(tmp_path / "b.py", ["same", "new"]))
    rows = shown._repr_html_().split('<span style="display:block')[1:]
    assert [source.REMOVED in row for row in rows] == [False, True, False]
    assert [source.ADDED in row for row in rows] == [False, False, True]


def test_the_html_is_self_contained_and_says_what_the_text_says(tmp_path):
    nasty = ["x = '<script>alert(1)</script>' & 2", '"""a docstring', "over lines", '"""', "\tif x < 3: pass", ""]
    paths = write(tmp_path / "a.py", nasty), write(tmp_path / "b<i>.py", [*nasty[:-1], "return"])
    for shown in (show_source(paths[1]), show_diff(*paths), show_source(source)):
        page = shown._repr_html_()
        read = Reader(page)
        assert read.tags == {"div", "pre", "span"} and read.attributes == {"style"}
        assert "url(" not in page
        assert re.sub(r"\s", "", read.text) == re.sub(r"\s", "", repr(shown))


def test_keywords_and_comments_are_coloured_and_docstrings_stay_whole(tmp_path):
    page = show_source(write(tmp_path / "a.py", ["def f():  # why", '    """one', '    two"""']))._repr_html_()
    styles = dict(source.COLOURS)
    keyword, comment, string = (styles[kind] for kind in (source.Keyword, source.Comment, source.String))
    assert f'<span style="color:{keyword}">def</span>' in page
    assert f'<span style="color:{comment}"># why</span>' in page
    assert page.count(f'<span style="color:{string}">') == 2  # one for each line of the docstring


def test_every_colour_is_readable_on_white_and_on_a_dark_theme():
    def luminance(colour):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colors.to_rgb(colour)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in {colour for _, colour in source.COLOURS} | {source.GREY}:
        on_white = 1.05 / (luminance(colour) + 0.05)
        on_dark = (luminance(colour) + 0.05) / (luminance("#111111") + 0.05)
        assert min(on_white, on_dark) > 4.3, (colour, on_white, on_dark)


def test_a_file_that_is_not_python_is_shown_too(tmp_path):
    shown = show_source(write(tmp_path / "job.unknown-ending", ["#SBATCH --nodes=2"]))
    assert body(shown) == ["1  #SBATCH --nodes=2"]


def test_a_script_is_written_as_the_cell_of_another_notebook_writes_it(tmp_path, monkeypatch):
    cells = [new_markdown_cell("%%writefile scripts/a.py"), new_code_cell("%%writefile scripts/a.py\nx = 1\ny = 2")]
    nbformat.write(new_notebook(cells=cells), tmp_path / "01_first.ipynb")
    monkeypatch.chdir(tmp_path)
    write_script("01_first.ipynb", "scripts/a.py")
    assert (tmp_path / "scripts" / "a.py").read_text() == "x = 1\ny = 2\n"
    with pytest.raises(InputError, match="No cell of 01_first.ipynb begins with '%%writefile scripts/b.py'"):
        write_script("01_first.ipynb", "scripts/b.py")
