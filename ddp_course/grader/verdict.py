"""The verdict on an answer: one of five states, what was observed, and where to look."""

import html
from dataclasses import dataclass, field

PASSED, WRONG, NOT_ATTEMPTED, CRASHED = "passed", "wrong", "not attempted", "crashed"
NOT_GRADED = "not graded"  # the machine was too busy, or a student's time was used up by other answers
EXIT_CODES = {PASSED: 0, WRONG: 1, NOT_ATTEMPTED: 2, CRASHED: 3, NOT_GRADED: 4}
# Mid-tones, legible on light and on dark pages.
COLOURS = {PASSED: "#148C27", WRONG: "#C6590A", NOT_ATTEMPTED: "#737A81", CRASHED: "#D04387", NOT_GRADED: "#737A81"}
LAST_LINES = 5  # of what a rank printed


class Wrong(Exception):
    """Raised by a check. `observed`: what the answer did, with numbers; `look`: one place to look."""

    def __init__(self, observed: str, look: str):
        super().__init__(observed)
        self.observed, self.look = observed, look


class NotPassed(AssertionError):
    """Raised by check(strict=True) if the answer did not pass; `verdict` is its Verdict."""

    def __init__(self, verdict: "Verdict"):
        super().__init__(repr(verdict))
        self.verdict = verdict


@dataclass(repr=False)
class Verdict:
    """The result of a grading, which a notebook cell shows as HTML.

    state     PASSED, WRONG, NOT_ATTEMPTED, CRASHED or NOT_GRADED
    observed  what the answer did wrong, in one sentence; "" if it passed
    look      one place to look; "" if it passed
    check     the check that failed; "" if all passed
    facts     the sentences of the checks, if all passed
    printed   rank -> the last lines that it printed, if the run itself failed
    """

    question: str
    state: str
    observed: str = ""
    look: str = ""
    check: str = ""
    facts: list[str] = field(default_factory=list)
    printed: dict[int, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return self.state == PASSED

    @property
    def exit_code(self) -> int:
        """0 passed, 1 wrong, 2 not attempted, 3 crashed, 4 not graded."""
        return EXIT_CODES[self.state]

    def rows(self) -> list[tuple[str, str]]:
        """(label, text) for each line below the first."""
        rows = [("✓", fact) for fact in self.facts] if self.passed else []
        rows += [("look at", self.look)] if self.look else []
        rows += [(f"rank {rank} printed", text) for rank, text in self.printed.items()]
        return rows + ([] if self.state in (PASSED, NOT_GRADED) else [("more", f'hint("{self.question}")')])

    def __repr__(self) -> str:
        lines = [f"{self.question} {self.state}" + (f": {self.observed}" if self.observed else "")]
        for label, text in self.rows():
            label += " " if label == "✓" else ": "
            lines.append(f"  {label}" + text.replace("\n", "\n" + " " * (len(label) + 2)))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        colour = COLOURS[self.state]
        head = f'<b>{self.question} <span style="color:{colour}">{self.state}</span></b>'
        head += f": {html.escape(self.observed)}" if self.observed else ""
        body = "".join(
            f'<div style="margin-top:4px"><span style="color:#737A81">{html.escape(label)}</span> '
            f'<span style="white-space:pre-wrap">{html.escape(text)}</span></div>'
            for label, text in self.rows()
        )
        return _box(colour, head + body)


@dataclass(repr=False)
class Hint:
    """Hint `number` of the `count` hints of a question, which a notebook cell shows as HTML.

    solution: the notebook with a right answer, such as "solutions/05_sharding_data.ipynb"; the last hint names it.
    """

    text: str
    number: int
    count: int
    solution: str

    def __repr__(self) -> str:
        last = f"\n  a right answer: {self.solution}" if self.number == self.count else ""
        return f"Hint {self.number} of {self.count}: {self.text}{last}"

    def _repr_html_(self) -> str:
        link = f'<br>A right answer: <a href="../{self.solution}">{self.solution}</a>'
        last = link if self.number == self.count else ""
        return _box("#1E7BD2", f"<b>Hint {self.number} of {self.count}.</b> {html.escape(self.text)}{last}")


def _box(colour, content):
    """A block of HTML with a line of this colour on its left."""
    return f'<div style="border-left:4px solid {colour};padding:2px 0 4px 12px;margin:4px 0">{content}</div>'


def last_lines(text: str) -> str:
    """The last LAST_LINES lines of what a rank printed, each cut to 200 characters."""
    return "\n".join(line[:200] for line in text.rstrip().splitlines()[-LAST_LINES:])
