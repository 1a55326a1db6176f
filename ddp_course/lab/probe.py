"""The numbers that a script printed, so that a lesson's script prints what it would print at work.

A line is `step 12  loss 3.141593  gradient norm 0.27`: two spaces between the entries, one before each number.
"""

from typing import Protocol

from ddp_course.base.errors import InputError


class HasLines(Protocol):
    """What the launcher returns: the lines of each rank."""

    lines: dict[int, list[str]]


def printed(run: HasLines, name: str, rank: int = 0) -> dict[int, float]:
    """{step: number} for every line of `rank` that gives `name`, such as "loss", in the order of printing.

    Raises InputError if there is none.
    """
    found = {}
    for line in run.lines[rank]:
        step, *entries = line.split("  ")
        for entry in entries:
            label, _, number = entry.rpartition(" ")
            if label == name and step.startswith("step "):
                found[int(step.removeprefix("step "))] = float(number)
    if not found:
        raise InputError(f"rank {rank} printed no line like 'step 1  {name} 2.5'; it printed {run.lines[rank][:3]}")
    return found
