"""A table in a notebook, from rows as plain as a list of dicts."""

from collections.abc import Mapping, Sequence

from IPython.display import Markdown


def table(rows: Sequence[Mapping[str, object]]) -> Markdown:
    """A Markdown table: the first row's keys are its head. Every row has the same keys, in the same order."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *[row.values() for row in rows]]
    return Markdown("\n".join(f"| {' | '.join(map(str, line))} |" for line in lines))
