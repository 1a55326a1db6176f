"""An answer of a page: what the command prints, and the rows of its pictures."""

import io
from argparse import Namespace
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout

from ddp_course.base.parser import Parser
from ddp_course.base.quantity import with_prefix
from ddp_course.plan.flags import print_report


def answered(parser: Parser, report: Callable[[Namespace], tuple[str, dict]], arguments: list[str]) -> dict:
    """report: of the flags, the text and what else the page gets. Wrong flags give a sentence and no picture."""
    more = {"pictures": []}

    def text(flags: Namespace) -> str:
        written, drawn = report(flags)
        more.update(drawn)
        return written

    return {"text": printed(lambda: print_report(parser, text, arguments)), **more}


def printed(run: Callable[[], object]) -> str:
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        run()
    return output.getvalue()


def row(name: str, label: str, parts: dict[str, float], written: Callable[[float], str]) -> dict:
    shown = [{"name": part, "value": value, "label": written(value)} for part, value in parts.items()]
    return {"name": name, "label": label, "parts": shown}


def gigabytes(size: float) -> str:
    return with_prefix(size, "B")


def gpus(count: int) -> str:
    return f"{count:,} GPU{'s' * (count > 1)}"
