"""Recognise Python code by parsing it. Nothing is executed."""

import ast
import warnings
from pathlib import Path

from ddp_course.data.text_files import input_errors


def syntax_tree(text: str) -> ast.Module | None:
    """Parse a text as Python; None if it is not. Nothing in it is run or imported.

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
    """Whether a file holds Python code: it parses, and at least one statement is not a bare expression.

    A line of JSON and a line with a single word are expressions. Raises InputError if the file cannot be read.
    """
    with input_errors(path):
        text = path.read_bytes()
    try:
        tree = syntax_tree(text.decode("utf-8"))
    except UnicodeDecodeError:
        return False
    return tree is not None and any(not isinstance(node, ast.Expr) for node in tree.body)
