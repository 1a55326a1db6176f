"""Predict before you run: write a number down, run the cell, and see both side by side."""

import html
import math

from ddp_course.base.quantity import format_number, is_number, plain, quantity
from ddp_course.grader.progress import note as note_progress

NOT_PREDICTED = "not predicted"

_predictions: dict[str, "Prediction"] = {}  # by question, so that running a cell again does not add a row


class Prediction:
    """A question with the reader's prediction and, once revealed, the measured value."""

    def __init__(self, question: str, predicted, unit: str = ""):
        self.question, self.predicted, self.unit = question, plain(predicted), unit
        self.measured, self.source, self.revealed = None, "measured", False

    def answer(self) -> str:
        """The reader's prediction with its unit, as text."""
        return NOT_PREDICTED if self.predicted is None else quantity(self.predicted, self.unit)

    def _sentence(self) -> str:
        return self.answer() if self.predicted is None else f"you said {self.answer()}"

    def reveal(self, measured, note: str = "", source: str = "measured") -> None:
        """Print the prediction, the measured value, the error of the prediction, and `note`.

        measured: a number (also a one-element tensor or array), string or bool. The last call counts.
        source: "computed", "emulated", "reported", "simulated" or "stored", if no cell measured the value.
        """
        self.measured, self.source, self.revealed = plain(measured), source, True
        measured_text = quantity(self.measured, self.unit)
        note_progress("measured", question=self.question, prediction=self.answer(), measured=measured_text)
        parts = [self._sentence(), f"{source} {measured_text}", self.gap(), note]
        print(" · ".join(part for part in parts if part))

    def gap(self) -> str:
        """The error of the prediction in words: a factor for numbers of the same sign. "" without a prediction."""
        predicted, measured = self.predicted, self.measured
        if predicted is None:
            return ""
        if predicted == measured:
            return "as predicted"
        if not all(is_number(value) and math.isfinite(value) for value in (predicted, measured)):
            return "not as predicted"
        if predicted * measured <= 0:
            return f"off by {quantity(abs(measured - predicted), self.unit)}"
        factor = max(predicted / measured, measured / predicted)
        return "within 1 %" if factor < 1.01 else f"off by a factor of {format_number(float(factor))}"

    def __repr__(self) -> str:
        return f"{self.question}: {self._sentence()}"


def predict(question: str, default=None, unit: str = "") -> Prediction:
    """Record a prediction: the reader puts their own answer in the place of None before running the cell.

    default: a number (in `unit`), string or bool; None: nothing was predicted, and the notebook continues.
    """
    prediction = _predictions[question] = Prediction(question, default, unit)
    note_progress("predicted", question=question, prediction=prediction.answer())
    in_unit = f" in {unit}" if unit else ""
    unanswered = f"{NOT_PREDICTED}: write your answer{in_unit} after default=, run this cell again, then run on"
    print(question, unanswered if default is None else f"your prediction: {prediction.answer()}", sep="\n")
    return prediction


class Scoreboard:
    """Every prediction of this notebook as a table."""

    def __init__(self, predictions: list[Prediction]):
        self.rows = [("question", "you said", "measured", "")]
        for prediction in predictions:
            measured = quantity(prediction.measured, prediction.unit) if prediction.revealed else "not yet"
            measured += f", {prediction.source}" * (prediction.source != "measured")
            self.rows.append(
                (prediction.question, prediction.answer(), measured, prediction.gap() if prediction.revealed else "")
            )

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

    A lesson calls this in its last cell. The start page then shows the notebook as finished.
    """
    note_progress("finished")
    return Scoreboard(list(_predictions.values()))
