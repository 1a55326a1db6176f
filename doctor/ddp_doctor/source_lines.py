"""Reads lines of the user's script, and the conditions and loops around them, from its source."""

import ast
import contextlib
import functools
import os
import re
from pathlib import Path

# A condition with one of these words depends on the rank, which makes one rank miss a collective.
ABOUT_RANK = re.compile(r"rank|is_main|main_process|is_zero|master|primary|chief|leader|coordinator|writer", re.I)


_latest_folder = ["/"]


def here() -> str:
    """The working folder; if it has been deleted, its former path."""
    with contextlib.suppress(OSError):
        _latest_folder[0] = os.getcwd()
    return _latest_folder[0]


@functools.cache
def _source(file: str) -> tuple[list[str], ast.Module | None]:
    """The lines of a file, [] if it cannot be read, and its syntax tree, None if it cannot be parsed."""
    try:
        text = Path(here(), file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return [], None
    try:
        return text.splitlines(), ast.parse(text)
    except SyntaxError:
        return text.splitlines(), None


def text_at(file: str, line: int) -> str:
    """The stripped text of a line, without its comment; of a longer statement, its first line; "" if unknown."""
    lines, tree = _source(file)
    if tree is not None:
        first_lines = [
            node.lineno
            for node in ast.walk(tree)
            if isinstance(node, ast.stmt) and not hasattr(node, "body") and node.lineno <= line <= node.end_lineno
        ]
        line = max(first_lines, default=line)
    return lines[line - 1].partition("  #")[0].strip() if 0 < line <= len(lines) else ""


def conditions(file: str, line: int) -> list[str]:
    """In words, what decides whether a line is reached, the nearest condition first: "under `if rank == 0`".

    Looks at the `if`s, `and`s and conditional expressions around it, at an earlier `if ...: return`, `continue` or
    `break` of the same block, and at the loops, all within the same function.
    """
    _, tree = _source(file)
    return list(_conditions_around(tree, line)) if tree else []


def deciding_condition(frames) -> str:
    """The condition around these frames (innermost first) that most likely splits the ranks; "" if there is none.

    The first of these: the innermost condition on the rank; the nearest condition around the innermost frame that is no
    loop, or around the call of its function if nothing is around that frame; the nearest loop around that frame.
    """
    enclosing = [condition for frame in frames for condition in conditions(frame.file, frame.line)]
    about_rank = list(filter(depends_on_rank, enclosing))
    if about_rank:
        return about_rank[0]
    nearest = conditions(frames[0].file, frames[0].line) if frames else []
    caller = conditions(frames[1].file, frames[1].line) if len(frames) > 1 and not nearest else []
    deciding = [condition for condition in [*nearest, *caller] if not condition.startswith("in the loop")]
    return (deciding or nearest or [""])[0]


def depends_on_rank(condition: str) -> bool:
    """Is a condition, as `conditions` words it, about the rank?"""
    return bool(ABOUT_RANK.search(condition)) and not condition.startswith("in the loop")


def way_past(frames) -> tuple[str, str]:
    """(key of verdict.CURES, sentence): how a rank can get past the collective of these frames, in a loop around it.

    ("", "") if the loops around the two innermost frames have no such way, and end with their data.
    """
    for frame in frames[:2]:
        for begin, end in loops_around(frame.file, frame.line):
            inside = [node for node in ast.walk(_source(frame.file)[1]) if begin < getattr(node, "lineno", 0) <= end]
            if way := _way_past(inside, frame):
                return way
    return "", ""


def _way_past(inside: list[ast.AST], frame) -> tuple[str, str] | None:
    """The first way in the nodes of one loop: the unwrapped model, a swallowed exception, a break or return."""
    if ".backward(" in text_at(frame.file, frame.line):
        for node in inside:
            inner_module = isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".module")
            if inner_module and conditions(frame.file, node.lineno):
                return "module", f"`{text_at(frame.file, node.lineno)}` at line {node.lineno} goes past DDP"
    for node in inside:
        if isinstance(node, ast.ExceptHandler) and not any(isinstance(each, ast.Raise) for each in ast.walk(node)):
            handler = f"except {_short(node.type)}" if node.type else "except"
            return "caught", f"a rank can go on after `{handler}` at line {node.lineno}"
        if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Break | ast.Return):
            way = f"`if {_short(node.test)}: {_short(node.body[-1])}`"
            return "leaves", f"a rank can leave the loop by {way} at line {node.lineno}"
    return None


def loops_around(file: str, line: int) -> list[tuple[int, int]]:
    """(first line, last line) of each loop around a line, the innermost first."""
    _, tree = _source(file)
    loops = (node for node in (ast.walk(tree) if tree else ()) if isinstance(node, ast.For | ast.While))
    ranges = ((loop.lineno, loop.end_lineno) for loop in loops)
    return sorted(((begin, end) for begin, end in ranges if begin < line <= end), reverse=True)


def _conditions_around(tree: ast.AST, line: int):
    """Yields the conditions around a line in words, the nearest first; see `conditions`."""
    path = []  # nodes that cover the line, from the module inwards
    node = tree
    while node is not None:
        path.append(node)
        node = next((child for child in ast.iter_child_nodes(node) if _covers(child, line)), None)
    for above, below in zip(reversed(path[:-1]), reversed(path[1:]), strict=True):
        if isinstance(below, ast.stmt):
            yield from _left_before(above, below)
        if isinstance(above, ast.If) and below is not above.test:
            test = _short(above.test)
            if "__name__" not in test:
                yield f"under the `else` of `if {test}`" if below in above.orelse else f"under `if {test}`"
        elif isinstance(above, ast.IfExp | ast.BoolOp):
            yield f"under `{_short(above)}`"
        elif isinstance(above, ast.ExceptHandler):
            yield f"in `except {_short(above.type)}`" if above.type else "in `except`"
        elif isinstance(above, ast.While) and below in above.body:
            yield f"in the loop `while {_short(above.test)}`"
        elif isinstance(above, ast.For) and below in above.body:
            yield f"in the loop `for {_short(above.target)} in {_short(above.iter)}`"
        elif isinstance(above, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return


def _covers(node: ast.AST, line: int) -> bool:
    if not hasattr(node, "lineno"):  # such as a `with` item, which has children with lines
        return any(_covers(child, line) for child in ast.iter_child_nodes(node))
    return node.lineno <= line <= node.end_lineno


def _left_before(block: ast.AST, statement: ast.stmt):
    """Yields "after `if rank != 0: return` at line 3" for each earlier `if` of the statement's block that leaves it.

    "..." instead of "return" if the body has several ways out: which of them a rank took is not known.
    """
    for name in ("body", "orelse", "finalbody"):
        siblings = getattr(block, name, None)
        if not isinstance(siblings, list) or statement not in siblings:
            continue
        for earlier in reversed(siblings[: siblings.index(statement)]):
            if isinstance(earlier, ast.If) and not earlier.orelse and _leaves(earlier.body[-1]):
                nodes_before = (node for inner in earlier.body[:-1] for node in ast.walk(inner))
                way = "..." if any(map(_leaves, nodes_before)) else _short(earlier.body[-1])
                yield f"after `if {_short(earlier.test)}: {way}` at line {earlier.lineno}"


def _leaves(statement: ast.AST) -> bool:
    """Does a statement always leave its block: return, continue, break, raise or an exit?"""
    if isinstance(statement, ast.Return | ast.Continue | ast.Break | ast.Raise):
        return True
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func) in ("sys.exit", "exit", "quit", "os._exit")


def _short(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 80 else text[:80] + "..."
