"""Predict before you run: write a number down, run the cell, and see both side by side."""

import html
import math

from ddp_course.lab.quantity import format_number, is_number, plain, quantity

_predictions: dict[str, "Prediction"] = {}  # by question, so that running a cell again does not add a row


class Prediction:
    """One question with what the reader said and, once revealed, what was measured."""

    def __init__(self, question: str, said, unit: str = ""):
        self.question, self.said, self.unit = question, plain(said), unit
        self.measured, self.note, self.revealed = None, "", False

    def reveal(self, measured, note: str = "") -> None:
        """Print what was said beside what was measured, and how far off it was; `note` is added in the end.

        measured: a number (also a one-element tensor or array), string or bool. The last call counts.
        """
        self.measured, self.note, self.revealed = plain(measured), note, True
        parts = [f"you said {quantity(self.said, self.unit)}", f"measured {quantity(self.measured, self.unit)}"]
        print(" · ".join([*parts, self.gap(), *([note] if note else [])]))

    def gap(self) -> str:
        """How far the prediction was off, in words: as a factor for numbers of one sign."""
        said, measured = self.said, self.measured
        if said == measured:
            return "as predicted"
        if not all(is_number(one) and math.isfinite(one) for one in (said, measured)):
            return "not as predicted"
        if said * measured <= 0:
            return f"off by {quantity(abs(measured - said), self.unit)}"
        factor = max(said / measured, measured / said)
        return "within 1 %" if factor < 1.01 else f"off by a factor of {format_number(float(factor))}"

    def __repr__(self) -> str:
        return f"{self.question}: you said {quantity(self.said, self.unit)}"


def predict(question: str, default, unit: str = "") -> Prediction:
    """Record a prediction: the reader changes `default` to their own answer before running the cell.

    default: a number (in `unit`), string or bool.
    """
    prediction = _predictions[question] = Prediction(question, default, unit)
    print(f"{question}\nyour prediction: {quantity(prediction.said, unit)} (change default= in this cell, then run on)")
    return prediction


class Scoreboard:
    """Every prediction of this notebook as a table."""

    def __init__(self, predictions: list[Prediction]):
        self.rows = [("question", "you said", "measured", "")]
        for one in predictions:
            measured = quantity(one.measured, one.unit) if one.revealed else "not yet"
            self.rows.append(
                (one.question, quantity(one.said, one.unit), measured, one.gap() if one.revealed else "")
            )

    def __repr__(self) -> str:
        widths = [max(len(row[i]) for row in self.rows) for i in range(4)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in self.rows
        )

    def _repr_html_(self) -> str:
        def line(row, tag):
            style = "text-align:left;padding:2px 12px 2px 0"
            return "<tr>" + "".join(f'<{tag} style="{style}">{html.escape(cell)}</{tag}>' for cell in row) + "</tr>"

        body = "".join(line(row, "td") for row in self.rows[1:])
        return f"<table><thead>{line(self.rows[0], 'th')}</thead><tbody>{body}</tbody></table>"


def scoreboard() -> Scoreboard:
    """All predictions so far, in the order they were made; put it last in a cell to see the table."""
    return Scoreboard(list(_predictions.values()))
