"""Draw the loss curve of a run: python -m ddp_course.lab.figures RUN_DIR"""

import sys
from pathlib import Path

from ddp_course.base.command import run_command
from ddp_course.base.errors import InputError
from ddp_course.base.parser import Parser
from ddp_course.base.quantity import format_number
from ddp_course.lab.figures.charts import loss_curves, points_of, read_metrics


def main(arguments: list[str] | None = None) -> int:
    """Write RUN_DIR/loss.png from RUN_DIR/metrics.jsonl and print its path; the exit code is 1 for bad input."""
    parser = Parser(prog="python -m ddp_course.lab.figures", description=main.__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    try:
        run_dir = parser.parse_args(arguments).run_dir
        records = read_metrics(run_dir)
        steps, losses = points_of(run_dir.name, records, "loss")
        first, last = format_number(losses[0]), format_number(losses[-1])
        title = f"Loss went from {first} at step {steps[0]} to {last} at step {steps[-1]}"
        figure = loss_curves({"training": records}, title)
    except InputError as error:
        print(error, file=sys.stderr)
        return 1
    figure.savefig(run_dir / "loss.png")
    print(run_dir / "loss.png")
    return 0


if __name__ == "__main__":
    run_command(main)
