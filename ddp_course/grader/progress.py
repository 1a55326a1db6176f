"""Records a reader's progress, one line of JSON for each event, in the folder that `make lab` names.

Without the variable DDP_COURSE_PROGRESS nothing is written, so tests and authors leave no trace.
"""

import json
import os
import time
from pathlib import Path

VARIABLE = "DDP_COURSE_PROGRESS"
FILE = "progress.jsonl"


def note(kind: str, **what) -> None:
    """Add a line: `kind` is "predicted", "measured", "finished" (a notebook) or "checked" (an exercise).

    A line also says when, and from which notebook, where the kernel was told (JPY_SESSION_NAME).
    A disk that is full or read-only stops no lesson: then there is no line.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    # An exercise has the file name of its lesson, so the folder belongs to the name.
    notebook = "/".join(Path(os.environ.get("JPY_SESSION_NAME", "")).parts[-2:])
    line = json.dumps({"kind": kind, "notebook": notebook, "seconds": round(time.time())} | what, default=str)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with open(Path(folder) / FILE, "a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError:
        pass


def read(folder: Path) -> list[dict]:
    """The lines in `folder`, oldest first; a line that is not whole is left out."""
    try:
        lines = (folder / FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and {"kind", "notebook"} <= set(event):
            events.append(event)
    return events
