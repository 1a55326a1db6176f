"""Predict before you run: write a number down, run the cell, and see both side by side."""

import html
import math

from ddp_course.base.quantity import format_number, is_number, plain, quantity
from ddp_course.grader.progress import note as note_progress

NOTHING_SAID = "not predicted"

_predictions: dict[str, "Prediction"] = {}  # by question, so that running a cell again does not add a row


class Prediction:
    """One question with what the reader said and, once revealed, what was measured."""

    def __init__(self, question: str, said, unit: str = ""):
        self.question, self.said, self.unit = question, plain(said), unit
        self.measured, self.note, self.revealed = None, "", False

    def answer(self) -> str:
        """What the reader said, with its unit."""
        return NOTHING_SAID if self.said is None else quantity(self.said, self.unit)

    def reveal(self, measured, note: str = "") -> None:
        """Print what was said beside what was measured, and how far off it was; `note` is added in the end.

        measured: a number (also a one-element tensor or array), string or bool. The last call counts.
        """
        self.measured, self.note, self.revealed = plain(measured), note, True
        found = quantity(self.measured, self.unit)
        note_progress("measured", question=self.question, said=self.answer(), measured=found)
        said = NOTHING_SAID if self.said is None else f"you said {self.answer()}"
        parts = [said, f"measured {found}", self.gap(), note]
        print(" · ".join(part for part in parts if part))

    def gap(self) -> str:
        """How far the prediction was off, in words: as a factor for numbers of one sign. "" if there was none."""
        said, measured = self.said, self.measured
        if said is None:
            return ""
        if said == measured:
            return "as predicted"
        if not all(is_number(one) and math.isfinite(one) for one in (said, measured)):
            return "not as predicted"
        if said * measured <= 0:
            return f"off by {quantity(abs(measured - said), self.unit)}"
        factor = max(said / measured, measured / said)
        return "within 1 %" if factor < 1.01 else f"off by a factor of {format_number(float(factor))}"

    def __repr__(self) -> str:
        return f"{self.question}: {NOTHING_SAID if self.said is None else f'you said {self.answer()}'}"


def predict(question: str, default=None, unit: str = "") -> Prediction:
    """Record a prediction: the reader puts their own answer in the place of None before running the cell.

    default: a number (in `unit`), string or bool; None: nothing was predicted, and the notebook runs on.
    """
    prediction = _predictions[question] = Prediction(question, default, unit)
    note_progress("predicted", question=question, said=prediction.answer())
    wanted = f" in {unit}" if unit else ""
    unanswered = f"{NOTHING_SAID}: write your answer{wanted} after default=, run this cell again, then run on"
    print(question, unanswered if default is None else f"your prediction: {prediction.answer()}", sep="\n")
    return prediction


class Scoreboard:
    """Every prediction of this notebook as a table."""

    def __init__(self, predictions: list[Prediction]):
        self.rows = [("question", "you said", "measured", "")]
        for one in predictions:
            measured = quantity(one.measured, one.unit) if one.revealed else "not yet"
            self.rows.append((one.question, one.answer(), measured, one.gap() if one.revealed else ""))

    def __repr__(self) -> str:
        widths = [max(len(row[i]) for row in self.rows) for i in range(4)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in self.rows
        )

    def _repr_html_(self) -> str:
        def line(row, tag):
            style = "text-align:left;padding:2px 12px 2px 0"
            return "<tr>" + "".join(f'<{tag} style="{style}">{html.escape(cell)}</{tag}>' for cell in row) + "</tr>"

        body = "".join(line(row, "td") for row in self.rows[1:])
        return f"<table><thead>{line(self.rows[0], 'th')}</thead><tbody>{body}</tbody></table>"


def scoreboard() -> Scoreboard:
    """All predictions so far, in the order they were made; put it last in a cell to see the table.

    It is the last cell of a lesson: the start page then calls the notebook finished.
    """
    note_progress("finished")
    return Scoreboard(list(_predictions.values()))
