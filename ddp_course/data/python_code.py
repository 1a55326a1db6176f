"""Whether a text is Python code. It is parsed, and never executed."""

import ast
import warnings
from pathlib import Path

from ddp_course.data.text_files import input_errors


def syntax_tree(text: str) -> ast.Module | None:
    """What `text` says, as far as grammar goes; None if it is not Python. Nothing in it is run, imported or looked up.

    A model can write anything: NUL bytes, a thousand open brackets, escapes that Python warns of. Whatever the
    parser raises means "not Python".
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)  # what invalid escapes raise before Python 3.12
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def is_code(path: Path) -> bool:
    """Whether a file holds Python code: it parses, and something in it is more than an expression.

    A line of JSON is an expression to Python, and so is a line that holds a single word. Raises InputError if the file
    cannot be read.
    """
    with input_errors(path):
        text = path.read_bytes()
    try:
        tree = syntax_tree(text.decode("utf-8"))
    except UnicodeDecodeError:
        return False
    return tree is not None and any(not isinstance(node, ast.Expr) for node in tree.body)
