"""Inside a rank, for 16.3: a folder for each machine stands for its disk, and the download is slow.

Each machine has a name of its own; process ids begin anew on each, as in containers.
"""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from unittest import mock

import torch.distributed as dist

PART, PARTS = b"part of a data set" * 4096, 4
SIZE = PARTS * len(PART)
ERRORS = [  # what the download raises on each machine: of two types, so that an answer has to catch any
    RuntimeError(
        f"the connection broke off after {SIZE // 2} of {SIZE} bytes, with the last word of the server: "
        "No space left on device"
    ),
    OSError(28, "No space left on device"),
]

created: list[str] = []  # the paths of files that this process has opened to create or to empty them


def note_creation(event, arguments):
    """An audit hook, called with every file that is opened."""
    if event == "open" and isinstance(arguments[0], str) and arguments[2] & (os.O_CREAT | os.O_TRUNC):
        created.append(os.path.realpath(arguments[0]))


sys.addaudithook(note_creation)


def drive(prepare, number, machines, present, fails, shared):
    """This rank's report of each attempt; there are two if the first one's download fails.

    number     of the run, for its folder
    machines   the machine of each rank
    present    the machines that have the file already
    fails      the machines whose first download fails
    shared     whether all machines share one disk

    A report: the returned path, the size of data.bin, the error raised, how often this rank downloaded, how often
    data.bin was there and not whole while it did, how many downloads were written outside the folder, and how often
    data.bin was opened for writing.
    """
    rank = dist.get_rank()
    machine, run = machines[rank], Path(f"run_{number}").resolve()
    os.environ |= {
        "GROUP_RANK": str(machine),
        "GROUP_WORLD_SIZE": str(len(set(machines))),
        "LOCAL_RANK": str(machines[:rank].count(machine)),
        "LOCAL_WORLD_SIZE": str(machines.count(machine)),
    }
    folder = run / ("shared" if shared else f"machine_{machine}")
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / "data.bin"
    if machine in present and os.environ["LOCAL_RANK"] == "0":
        final.write_bytes(PARTS * PART)
    wait_for_ranks(run / "ready")

    def report_of(attempt):
        report = {"path": None, "bytes": 0, "raised": None, "downloads": 0, "incomplete": 0, "outside": 0}
        created.clear()

        def download(path):
            report["downloads"] += 1
            report["outside"] += not Path(path).resolve().is_relative_to(folder)
            if shared:
                wait_for_machines(run, machine, set(machines))
            with open(path, "wb") as file:
                for part in range(PARTS):
                    file.write(PART)
                    file.flush()
                    time.sleep(0.02 * (1 + machine))
                    with suppress(FileNotFoundError):  # one look, because another rank may remove it
                        report["incomplete"] += final.stat().st_size < SIZE
                    if part == 1 and attempt == 0 and machine in fails:
                        raise ERRORS[machine]

        try:
            host_name = mock.Mock(return_value=f"machine-{machine}")
            with (
                mock.patch("os.getpid", process_id_on_machine),
                mock.patch("socket.gethostname", host_name),
                mock.patch("platform.node", host_name),
            ):
                path = prepare(folder, download)
            report["path"] = os.path.relpath(os.path.abspath(path), folder)
            report["bytes"] = final.stat().st_size if final.is_file() else 0
        except Exception as error:
            if attempt or not (fails or shared):
                raise
            report["raised"] = f"{type(error).__name__}: {error}"[:5000]
        report["written"] = created.count(str(final))
        wait_for_ranks(run / f"attempt_{attempt}")
        return report

    return [report_of(attempt) for attempt in range(2 if fails else 1)]


def process_id_on_machine(getpid=os.getpid):
    """For the answer an id that a process on another machine has, too; for all others the real one."""
    called_by_answer = sys._getframe(1).f_globals["__name__"] == "answer"
    return 7 + int(os.environ["LOCAL_RANK"]) if called_by_answer else getpid()


def wait_for_machines(run, machine, machines):
    """Wait a second at most for the downloads of the other machines to begin."""
    (run / f"begun_{machine}").touch()
    deadline = time.monotonic() + 1
    while not all((run / f"begun_{other}").exists() for other in machines) and time.monotonic() < deadline:
        time.sleep(0.02)


def wait_for_ranks(path):
    """Wait until every rank has called this, without a collective: a rank may still be in one of the answer's."""
    Path(f"{path}_{dist.get_rank()}").touch()
    while not all(Path(f"{path}_{rank}").exists() for rank in range(dist.get_world_size())):
        time.sleep(0.02)
