"""Explains a log that somebody pasted: what failed first, on which rank, and what a log cannot tell.

    from ddp_doctor.explain import explain_text
    print(explain_text(text))

Imports nothing but the standard library, so that it also runs without torch, such as in a browser.
"""

from pathlib import Path

from ddp_doctor.explain.blame import explain
from ddp_doctor.explain.facts import Explanation, Facts
from ddp_doctor.explain.log_lines import Log, short_name
from ddp_doctor.explain.reading import read
from ddp_doctor.explain.report import as_json, page

__all__ = ["as_json", "explain_logs", "explain_text", "log_files", "page"]


def explain_logs(logs: list[Log]) -> tuple[Explanation, Facts]:
    """The explanation of the first failure in the logs of one job, and the facts that it is based on."""
    facts = read(logs)
    return explain(facts), facts


def explain_text(text: str) -> str:
    """The page that explains one pasted text."""
    return page(*explain_logs([Log(text)]))


def log_files(path: Path) -> list[Log]:
    """The log at a path, or those under a folder, such as torchrun's --log-dir, sorted by path."""
    files = [path]
    if path.is_dir():
        suffixes = (".log", ".txt", ".out", ".err", "")
        files = [file for file in sorted(path.rglob("*")) if file.is_file() and file.suffix in suffixes]
    return [Log(file.read_bytes().decode(errors="replace"), short_name(str(file))) for file in files]
