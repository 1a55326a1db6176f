"""Show source code in a notebook: code of the package with line numbers, or the difference of two scripts.

`write_script` writes a script that another notebook shows, so that a notebook runs without those before it.

The HTML carries its style inline, has no script and loads nothing. Its colours are mid-tones over the page's own
background, so that one output is readable in light and dark themes; without any style, signs and numbers remain.
"""

import difflib
import html
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.token import Comment, Keyword, Name, Number, Operator, String
from pygments.util import ClassNotFound

from ddp_course.base.errors import InputError

CONTEXT = 3  # unchanged lines around a change
WRITEFILE = re.compile(r"\s*%%writefile\s+(.*)")
# At least 4.3 to 1 against both white and #111111 (WCAG 2 contrast).
COLOURS = [
    (Comment, "#737A81"),
    (String, "#148C27"),
    (Number, "#C6590A"),
    (Keyword, "#A455D4"),
    (Operator.Word, "#A455D4"),
    (Name.Decorator, "#D04387"),
    (Name.Function, "#1E7BD2"),
    (Name.Class, "#1E7BD2"),
    (Name.Builtin, "#1E7BD2"),
]
GREY = "#737A81"
ADDED, REMOVED = "rgba(46,160,67,0.20)", "rgba(229,83,75,0.20)"
EDGE = "1px solid rgba(128,128,128,0.35)"
BOX = f"border:{EDGE};border-radius:4px;margin:4px 0;overflow-x:auto"
HEAD = f"padding:4px 10px;font-family:sans-serif;font-size:13px;color:{GREY};border-bottom:{EDGE}"
# As wide as its longest line, so that the tint of a changed line does not end where scrolling begins.
PRE = (
    "display:inline-block;min-width:100%;box-sizing:border-box;margin:0;padding:6px 0;white-space:pre;"
    "background:transparent;line-height:1.4;font-size:13px;font-family:monospace"
)


@dataclass(frozen=True)
class Line:
    """One line of the output: its number and sign, its code as text and as HTML, and the colour behind it."""

    number: str
    code: str = ""
    styled: str = ""
    tint: str = ""

    def as_html(self) -> str:
        """The line; its number is left out when a reader copies the text."""
        number = f'<span style="color:{GREY};user-select:none">{self.number}</span>'
        back = f";background-color:{self.tint}" if self.tint else ""
        return f'<span style="display:block;padding:0 10px{back}">{number}{self.styled}\n</span>'


class SourceView:
    """A cell's output below a heading: HTML in a notebook, plain text in a terminal."""

    def __init__(self, heading: str, lines: list[Line]):
        self.heading, self.lines = heading, lines

    def _repr_html_(self) -> str:
        rows = "".join(line.as_html() for line in self.lines)
        body = f'<pre style="{PRE}">{rows}</pre>' if rows else ""
        return f'<div style="{BOX}"><div style="{HEAD}">{html.escape(self.heading)}</div>{body}</div>'

    def __repr__(self) -> str:
        return "\n".join([self.heading, *(f"{line.number}{line.code}".rstrip() for line in self.lines)])


def show_source(obj_or_path, *, lines: tuple[int, int] | None = None) -> SourceView:
    """The source of a function, class, module or file, with the line numbers it has in its file.

    lines: (first, last) line number, both shown; they count as in the file.
    Raises InputError if there is no source, or `lines` lies outside it.
    """
    if isinstance(obj_or_path, (str, Path)):
        name, first, code = _name(obj_or_path), 1, _read(obj_or_path)
        file_name = Path(obj_or_path).name
    else:
        name, first, code = _source_of(obj_or_path)
        file_name = "source.py"
    low, high = lines or (first, first + len(code) - 1)
    if lines is not None:
        if not first <= low <= high < first + len(code):
            raise InputError(f"{name} has lines {first} to {first + len(code) - 1}; lines={lines} asks for others.")
        name += f", lines {low} to {high}"
    numbered = _numbered(file_name, code, len(str(high)), first=first)
    return SourceView(name, numbered[low - first : high - first + 1])


def show_diff(old_path: str | Path, new_path: str | Path) -> SourceView:
    """The difference of two scripts: added lines green with "+", removed lines red with "-".

    Unchanged lines are folded except for three around each change; the heading counts the changed lines.
    Raises InputError if one of the files cannot be read.
    """
    old, new = _read(old_path), _read(new_path)
    width = len(str(max(len(old), len(new))))
    removed = _numbered(Path(old_path).name, old, width, "- ", REMOVED)
    added = _numbered(Path(new_path).name, new, width, "+ ", ADDED)
    unchanged = _numbered(Path(new_path).name, new, width, "  ")
    lines, next_line = [], 0
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT):
        lines += _fold(group[0][1] - next_line)
        for tag, i1, i2, j1, j2 in group:
            lines += unchanged[j1:j2] if tag == "equal" else removed[i1:i2] + added[j1:j2]
        next_line = group[-1][2]
    lines += _fold(len(old) - next_line)
    counts = [sum(line.tint == tint for line in lines) for tint in (ADDED, REMOVED)]
    changes = f"{_count(counts[0])} added, {counts[1]} removed" if any(counts) else "no difference"
    return SourceView(f"{_name(old_path)} → {_name(new_path)}: {changes}", lines)


def write_script(notebook: str | Path, script: str) -> None:
    """Write `script`, such as "scripts/train_01.py", with the text of the cell of `notebook` that writes it.

    Raises InputError if no cell of the notebook begins with %%writefile and this name.
    """
    texts = {name: text for _, name, text in written_files(nbformat.read(notebook, as_version=4))}
    if script not in texts:
        raise InputError(f"No cell of {notebook} begins with '%%writefile {script}'.")
    Path(script).parent.mkdir(exist_ok=True)
    Path(script).write_text(texts[script] + "\n", encoding="utf-8")


def written_files(nb: NotebookNode) -> Iterator[tuple[NotebookNode, str, str]]:
    """Every `%%writefile` cell as (cell, destination as the cell gives it, text below the magic line)."""
    for cell in nb.cells:
        magic, _, text = cell.source.partition("\n")
        match = WRITEFILE.match(magic) if cell.cell_type == "code" else None
        if match:
            yield cell, match.group(1).strip().strip("'\""), text


def _count(lines: int) -> str:
    return f"{lines} line{'' if lines == 1 else 's'}"


def _numbered(
    file_name: str, code: list[str], width: int, sign: str = " ", tint: str = "", first: int = 1
) -> list[Line]:
    """The lines of a file, numbered from `first` in a column of `width` characters."""
    numbered = enumerate(zip(code, _highlight(file_name, code), strict=True), first)
    return [Line(f"{number:>{width}} {sign}", plain, styled, tint) for number, (plain, styled) in numbered]


def _fold(count: int) -> list[Line]:
    """A line that says how many unchanged lines are hidden, if any."""
    return [Line(f"  ... {_count(count)} unchanged")] if count else []


def _name(path: str | Path) -> str:
    """The path to show. Outputs are committed, so it must not contain folders of this machine."""
    path = Path(path)
    if not path.is_absolute():
        return path.as_posix()
    return path.relative_to(Path.cwd()).as_posix() if Path.cwd() in path.parents else path.name


def _read(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"Cannot show {path}: {reason}; it should be a file of source code.") from error


def _source_of(obj: object) -> tuple[str, int, list[str]]:
    """The name to show, the number of the first line, and the lines of a function, class or module."""
    obj = inspect.unwrap(obj) if callable(obj) else obj
    try:
        code, first = inspect.getsourcelines(obj)
        file = inspect.getsourcefile(obj) or ""
    except (TypeError, OSError) as error:
        raise InputError(
            f"There is no Python source for {obj!r}: show_source takes a function, class, module or a file's path."
        ) from error
    if not Path(file).is_file():  # a cell has a made-up file name
        name = "this notebook"
    else:
        # The path inside its package, without the folder of the installation.
        module = obj.__name__ if inspect.ismodule(obj) else obj.__module__
        package = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None)
        folder = Path(package or file).parent
        folder = folder.parent if package and Path(package).name == "__init__.py" else folder
        name = Path(file).relative_to(folder).as_posix() if folder in Path(file).parents else Path(file).name
    name += "" if inspect.ismodule(obj) else f" · {obj.__qualname__}"
    return name, max(first, 1), [line.rstrip("\n") for line in code]


def _highlight(name: str, code: list[str]) -> list[str]:
    """HTML of each line. Tokens that span lines (docstrings) are closed and opened again at each line's end."""
    try:
        lexer = get_lexer_for_filename(name, stripnl=False, ensurenl=True)
    except ClassNotFound:
        lexer = TextLexer(stripnl=False)
    lines = [""]
    for token, text in lexer.get_tokens("\n".join(code)):
        colour = next((colour for kind, colour in COLOURS if token in kind), None)
        for i, part in enumerate(text.split("\n")):
            if i:
                lines.append("")
            safe = html.escape(part, quote=False)
            lines[-1] += f'<span style="color:{colour}">{safe}</span>' if colour and part.strip() else safe
    return lines[: len(code)]
