"""Show what ran on a GPU: the records that `make gpu` writes on a machine that has one."""

import html
from pathlib import Path

from IPython.display import HTML, display

from ddp_course.base.errors import InputError
from ddp_course.base.json_file import read_object

RECORDS = Path(__file__).resolve().parents[2] / "records" / "gpu"
NO_RECORD = "no GPU record yet: run on CPUs so far; make gpu writes one"
NEEDED = {"part": str, "machine": dict, "date": str, "command": str, "rows": list, "text": str, "files": list}


def show_gpu_record(*parts: str) -> None:
    """Show the records of these parts of `make gpu`, each in a folded block, or say that there is none."""
    records = [record for record in map(read_record, parts) if record is not None]
    for record in records:
        display(HTML(folded(record)))
    if not records:
        print(NO_RECORD)


def read_record(part: str, folder: Path | None = None) -> dict | None:
    """The record of a part, or None. Raises InputError for a file that is no such record."""
    path = (folder or RECORDS) / f"{part}.json"
    if not path.exists():
        return None
    record = read_object(path)
    wrong = [name for name, kind in NEEDED.items() if not isinstance(record.get(name), kind)]
    if wrong:
        raise InputError(f"{path} is no record of make gpu: it lacks {', '.join(wrong)}; run make gpu again")
    return record


def folded(record: dict) -> str:
    """The record as a folded block of HTML without empty lines, so that it can also be put into Markdown."""
    by_hand = "made by hand, not measured: " if record.get("made_by_hand") else ""
    machine = ", ".join(f"{name} {value}" for name, value in record["machine"].items())
    summary = f"{by_hand}on a GPU ({record['machine'].get('GPUs', 'unknown')}, {record['date']}): {record['part']}"
    names = list(dict.fromkeys(name for row in record["rows"] for name in row))
    lines = [_cells("th", names), *(_cells("td", [row.get(name, "") for name in names]) for row in record["rows"])]
    parts = [f"<p>{_text(machine)}<br><code>{_text(record['command'])}</code></p>", f"<table>{''.join(lines)}</table>"]
    if record["text"]:
        parts.append("<pre>" + "\n".join(filter(str.strip, _text(record["text"]).splitlines())) + "</pre>")
    if record["files"]:
        parts.append(f"<p>Files in records/gpu: {_text(', '.join(record['files']))}</p>")
    return "\n".join([f"<details><summary>{_text(summary)}</summary>", *parts, "</details>"])


def _cells(tag: str, values: list) -> str:
    return f"<tr>{''.join(f'<{tag}>{_text(value)}</{tag}>' for value in values)}</tr>"


def _text(value: object) -> str:
    return html.escape(str(value))
