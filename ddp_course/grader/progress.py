"""Record a reader's progress, one line of JSON for each event, in the folder that DDP_COURSE_PROGRESS names.

`make lab` sets that variable. Without it nothing is written, so tests and authors leave no trace.
"""

import json
import os
import time
from pathlib import Path

VARIABLE = "DDP_COURSE_PROGRESS"
FILE = "progress.jsonl"


def note(kind: str, **fields) -> None:
    """Add a line: `kind` is "predicted", "measured", "finished" (a notebook) or "checked" (an exercise or warm-up).

    A line also has the time in seconds, and the notebook if the kernel knows it (JPY_SESSION_NAME).
    If the disk is full or read-only the line is dropped: the lesson continues without it.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    # With its folder, because an exercise notebook has the same file name as its lesson.
    notebook = "/".join(Path(os.environ.get("JPY_SESSION_NAME", "")).parts[-2:])
    line = json.dumps({"kind": kind, "notebook": notebook, "seconds": round(time.time())} | fields, default=str)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with open(Path(folder) / FILE, "a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError:
        pass


def read(folder: Path) -> list[dict]:
    """The events recorded in `folder`, oldest first; [] if there are none. Damaged lines are left out."""
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
