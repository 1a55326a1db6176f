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


class SourceView:
    """A cell's output: HTML in a notebook, plain text in a terminal."""

    def __init__(self, text: str, page: str):
        self.text, self.page = text, page

    def _repr_html_(self) -> str:
        return self.page

    def __repr__(self) -> str:
        return self.text


def show_source(obj_or_path, *, lines: tuple[int, int] | None = None) -> SourceView:
    """The source of a function, class, module or file, with the line numbers it has in its file.

    lines: (first, last) line number, both shown; they count as in the file.
    Raises InputError if there is no source, or `lines` lies outside it.
    """
    if isinstance(obj_or_path, (str, Path)):
        name, first, code = _name(obj_or_path), 1, _read(obj_or_path)
        styled_code = _highlight(Path(obj_or_path).name, code)
    else:
        name, first, code = _source_of(obj_or_path)
        styled_code = _highlight("source.py", code)
    numbered = list(enumerate(zip(code, styled_code, strict=True), start=first))
    if lines is not None:
        low, high = lines
        if not first <= low <= high < first + len(code):
            raise InputError(f"{name} has lines {first} to {first + len(code) - 1}; lines={lines} asks for others.")
        numbered = numbered[low - first : high - first + 1]
        name += f", lines {low} to {high}"
    width = len(str(numbered[-1][0])) if numbered else 1
    text = "\n".join(f"{number:>{width}}  {plain}".rstrip() for number, (plain, _) in numbered)
    body = [_line(f"{number:>{width}} ", styled) for number, (_, styled) in numbered]
    return SourceView(f"{name}\n{text}", _page(name, body))


def show_diff(old_path: str | Path, new_path: str | Path) -> SourceView:
    """The difference of two scripts: added lines green with "+", removed lines red with "-".

    Unchanged lines are folded except for three around each change; the heading counts the changed lines.
    Raises InputError if one of the files cannot be read.
    """
    old, new = _read(old_path), _read(new_path)
    styled_old, styled_new = _highlight(Path(old_path).name, old), _highlight(Path(new_path).name, new)
    width = len(str(max(len(old), len(new))))
    rows, texts, added, removed, next_line = [], [], 0, 0, 0
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    groups = list(matcher.get_grouped_opcodes(CONTEXT))
    for group in groups:
        _fold(rows, texts, group[0][1] - next_line)
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                chosen = [(" ", j + 1, new[j], styled_new[j], "") for j in range(j1, j2)]
            else:
                chosen = [("-", i + 1, old[i], styled_old[i], REMOVED) for i in range(i1, i2)]
                chosen += [("+", j + 1, new[j], styled_new[j], ADDED) for j in range(j1, j2)]
                removed, added = removed + i2 - i1, added + j2 - j1
            for sign, number, plain, styled, tint in chosen:
                rows.append(_line(f"{number:>{width}} {sign} ", styled, tint))
                texts.append(f"{number:>{width}} {sign} {plain}".rstrip())
        next_line = group[-1][2]
    _fold(rows, texts, len(old) - next_line)
    changes = f"{_count(added)} added, {removed} removed" if groups else "no difference"
    head = f"{_name(old_path)} → {_name(new_path)}: {changes}"
    return SourceView("\n".join([head, *texts]), _page(head, rows))


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


def _fold(rows: list[str], texts: list[str], lines: int) -> None:
    """Add a row that says how many unchanged lines are hidden, if any."""
    if lines:
        texts.append(f"  ... {_count(lines)} unchanged")
        rows.append(_line("", f'<span style="color:{GREY}">  ... {_count(lines)} unchanged</span>'))


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


def _source_of(thing) -> tuple[str, int, list[str]]:
    """The name to show, the number of the first line, and the lines of a function, class or module."""
    thing = inspect.unwrap(thing) if callable(thing) else thing
    try:
        code, first = inspect.getsourcelines(thing)
        file = inspect.getsourcefile(thing) or ""
    except (TypeError, OSError) as error:
        raise InputError(
            f"There is no Python source for {thing!r}: show_source takes a function, class, module or a file's path."
        ) from error
    if not Path(file).is_file():  # a cell has a made-up file name
        name = "this notebook"
    else:
        # The path inside its package, without the folder of the installation.
        module = thing.__name__ if inspect.ismodule(thing) else thing.__module__
        package = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None)
        folder = Path(package or file).parent
        folder = folder.parent if package and Path(package).name == "__init__.py" else folder
        name = Path(file).relative_to(folder).as_posix() if folder in Path(file).parents else Path(file).name
    name += "" if inspect.ismodule(thing) else f" · {thing.__qualname__}"
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


def _line(number: str, styled: str, tint: str = "") -> str:
    """One line of code; its number is left out when a reader copies the text."""
    gutter = f'<span style="color:{GREY};user-select:none">{number}</span>'
    back = f";background-color:{tint}" if tint else ""
    return f'<span style="display:block;padding:0 10px{back}">{gutter}{styled}\n</span>'


def _page(head: str, rows: list[str]) -> str:
    body = f'<pre style="{PRE}">{"".join(rows)}</pre>' if rows else ""
    return f'<div style="{BOX}"><div style="{HEAD}">{html.escape(head)}</div>{body}</div>'
