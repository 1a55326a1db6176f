"""From a corpus to a post-trained model in one command: tokenizer, pre-training, reward model, GRPO, and a report.

python -m ddp_course.speedrun                                        # one process per GPU, two without GPUs
python -m ddp_course.speedrun --run-dir runs/mine --nproc 4         # the same command resumes a stopped run
python -m ddp_course.speedrun --backbone hf:path/to/model           # from a model that is pre-trained already
"""

import os
import sys
import time
from collections.abc import Iterable

from ddp_course.base.command import run_command
from ddp_course.base.errors import InputError, in_one_line
from ddp_course.base.parser import Parser
from ddp_course.launcher import RunFailed
from ddp_course.speedrun.stages import PRESETS, speedrun


def main(arguments: Iterable[str] | None = None) -> int:
    parser = Parser(prog="python -m ddp_course.speedrun", description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=PRESETS, default="laptop", help="the sizes of all stages")
    parser.add_argument("--run-dir", default=time.strftime("runs/speedrun-%Y%m%d-%H%M%S"), help="new, or to resume")
    parser.add_argument("--nproc", type=int, help="processes (default: one per GPU, two without GPUs)")
    parser.add_argument("--data", default="stdlib", help="stdlib, or a file or folder of Python code")
    parser.add_argument("--seed", type=int, default=1, help="the seed of all stages")
    parser.add_argument(
        "--backbone",
        default="",
        help="a pre-trained model, instead of a tokenizer and pre-training: "
        "a run directory or checkpoint of ours, hf:FOLDER_OR_NAME, or nanochat:SOURCE",
    )
    try:
        options = parser.parse_args(arguments)
        from ddp_course.speedrun.report import write_report  # loads matplotlib, which --help does not need

        record = speedrun(
            options.run_dir,
            options.preset,
            nproc=options.nproc,
            data=options.data,
            seed=options.seed,
            backbone=options.backbone,
        )
        if all(stage["finished"] for stage in record["stages"].values()):
            print(f"\nreport: {write_report(options.run_dir)}")
        else:
            print(f"\nstopped; the same command with --run-dir {options.run_dir} goes on")
            return os.EX_TEMPFAIL  # 75, as in the trainers: a scheduler then starts the speedrun again
    except InputError as error:
        print(f"error: {in_one_line(error)}", file=sys.stderr)
        return 2
    except RunFailed:
        print(
            f"error: a stage failed, see above; with --run-dir {options.run_dir} it goes on from there", file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        print(f"\ninterrupted; the same command with --run-dir {options.run_dir} goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    run_command(main)
