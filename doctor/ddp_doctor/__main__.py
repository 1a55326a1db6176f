"""Names the rank, the collective and the line when a multi-process PyTorch job hangs or dies, or trains wrongly.

    python -m ddp_doctor run --nproc 2 train.py --lr 0.1     # instead of torchrun
    python -m ddp_doctor attach PID                          # of torchrun, or of one rank
    python -m ddp_doctor check train.py --epochs 2           # short runs on the CPU, then a checklist
    python -m ddp_doctor meet node1:29500                    # on each machine, before a job on several
    python -m ddp_doctor explain train.log                   # reads a log: what failed first, and on which rank

The script needs no change. `run` reports when nothing moves any more, and watches on; it ends a job that provably
cannot end by itself. Exit code 0: the job ended well (`run`), no rank waits for one that will not come (`attach`),
nothing is wrong (`check`, `meet`), no failure was found (`explain`); else 1; 2: it cannot be done as asked; 130:
interrupted.
"""

import sys


def main(arguments: list[str] | None = None) -> int:
    try:
        from ddp_doctor.command_line import execute  # here, so that an interrupt of the imports is caught, too

        try:
            status = execute(arguments)
        except SystemExit as system_exit:  # argparse has printed its help
            status = system_exit.code
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        if error.filename is not None:
            raise
        print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
        sys.stdout = None  # Python would try again as it ends, and complain
        return 1


if __name__ == "__main__":
    sys.exit(main())
