"""Write the page that `make lab` opens: the reader's progress, from the file that grader/progress.py writes.

python -m ddp_course.lab.start_page FOLDER        writes FOLDER/start_here.ipynb and prints its path
"""

import sys
from pathlib import Path

import nbformat
from IPython.display import Markdown
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ddp_course.base.command import run_command
from ddp_course.base.errors import InputError
from ddp_course.grader.progress import read
from ddp_course.lab.course_map import ANSWERS, ROOT, lessons
from ddp_course.lab.predict import NOT_PREDICTED

PAGE = "start_here.ipynb"
TEXT = """# Start here

Where you stand in the course. Run the cell below (Shift+Enter) to bring the table up to date.

The notebooks are read in order, from 00 to 04 at least; those with a letter are optional. 10b converts a script of your
own. *Finished* means that the last code cell of a notebook has run. All of it is kept in `progress.jsonl` in this
folder, and nowhere else: delete that file to begin anew."""
CODE = """from pathlib import Path

from ddp_course.lab.start_page import table

table(Path())"""


def table(folder: Path, root: Path = ROOT) -> Markdown:
    """A table with a row for each notebook: begun or finished, its predictions, warm-ups and exercises.

    folder: that of the progress file, one level below `root`; links are relative to it.
    """
    events = read(folder)
    rows = ["| notebook | what it answers | | predictions | exercises |", "|---|---|---|---|---|"]
    for number, title, path, exercises in lessons(root):
        notebook_events = [event for event in events if event["notebook"] == f"notebooks/{path.name}"]
        state = "begun" if notebook_events else ""
        if any(event["kind"] == "finished" for event in notebook_events):
            state = "finished"
        link = f"[{number} {title}](../notebooks/{path.name})"
        answered, checked = predictions(notebook_events), checks(number, exercises, events)
        rows.append(f"| {link} | {ANSWERS[number]} | {state} | {answered} | {checked} |")
    return Markdown("\n".join([summary(events), "", *rows]))


def predictions(events: list[dict]) -> str:
    """How many of the notebook's questions have a prediction, such as "2 of 3"; "" if none was asked yet."""
    last = {event["question"]: event for event in events if event["kind"] in ("predicted", "measured")}
    answered = sum(event.get("prediction") != NOT_PREDICTED for event in last.values())
    return f"{answered} of {len(last)}" if last else ""


def checks(number: str, exercises: Path | None, events: list[dict]) -> str:
    """A link to a notebook's exercises, and each checked question: "passed" if it ever was, else its last state."""
    if exercises is None:
        return ""
    states: dict[str, list[str]] = {}
    for event in events:
        if event["kind"] == "checked" and event["question"].startswith(f"{number}."):
            states.setdefault(event["question"], []).append(event["state"])
    best = [
        f"{name} {'passed' if 'passed' in question_states else question_states[-1]}"
        for name, question_states in sorted(states.items())
    ]
    return ", ".join([f"[exercises](../exercises/{exercises.name})", *best])


def summary(events: list[dict]) -> str:
    """A sentence: the numbers of finished notebooks and passed questions, and the last notebook used."""
    if not events:
        return "Nothing yet. Begin with [00, your lab](../notebooks/00_your_lab.ipynb)."
    passed = {event["question"] for event in events if event["kind"] == "checked" and event["state"] == "passed"}
    finished = {event["notebook"] for event in events if event["kind"] == "finished"}
    names = [event["notebook"] for event in events if event["notebook"]]
    last = f" Last used: {names[-1]}." if names else ""
    return f"{len(finished)} notebook(s) finished, {len(passed)} question(s) passed.{last}"


def write(folder: Path, root: Path = ROOT) -> Path:
    """Write the page into `folder` with today's table as the output of its cell, and return its path."""
    shown = table(folder, root).data
    output = new_output("execute_result", {"text/markdown": shown, "text/plain": shown}, execution_count=1)
    hidden = {"jupyter": {"source_hidden": True}, "tags": ["hide-input"]}
    cells = [
        new_markdown_cell(TEXT, id="start"),
        new_code_cell(CODE, id="table", execution_count=1, outputs=[output], metadata=hidden),
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / PAGE
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    return path


def main(arguments: list[str] | None = None) -> int:
    """The command line, with one argument, the folder; the exit code is 2 for bad input."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if len(arguments) != 1:
            raise InputError(f"start_page takes one folder, got {len(arguments)} arguments")
        print(write(Path(arguments[0])))
    except (InputError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    run_command(main)
