"""A table in a notebook, from a list of dicts."""

from collections.abc import Mapping, Sequence

from IPython.display import Markdown


def table(rows: Sequence[Mapping[str, object]]) -> Markdown:
    """A Markdown table, headed by the keys of the first row. Every row must have the same keys in the same order."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *[row.values() for row in rows]]
    return Markdown("\n".join(f"| {' | '.join(map(str, line))} |" for line in lines))
