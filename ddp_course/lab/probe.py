"""Read the numbers that a script printed, so that a lesson's script needs no recording code.

A line is `step 12  loss 3.141593  gradient norm 0.27`: two spaces between the entries, one before each number.
"""

from ddp_course.base.errors import InputError
from ddp_course.launcher import Run


def printed(run: Run, name: str, rank: int = 0) -> dict[int, float]:
    """{step: number} for every line of `rank` that gives `name`, such as "loss", in the order of printing.

    Raises InputError if there is none.
    """
    numbers = {}
    for line in run.lines[rank]:
        step, *entries = line.split("  ")
        for entry in entries:
            label, _, number = entry.rpartition(" ")
            if label == name and step.startswith("step "):
                numbers[int(step.removeprefix("step "))] = float(number)
    if not numbers:
        raise InputError(f"rank {rank} printed no line like 'step 1  {name} 2.5'; it printed {run.lines[rank][:3]}")
    return numbers
