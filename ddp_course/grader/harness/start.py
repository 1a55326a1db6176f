"""Run the tasks of a grading, each on ranks of its own: python -m ...harness.start FOLDER

FOLDER/tasks.pickle holds a list of Task. Task number n leaves its ranks' notes (see notes.py) in FOLDER/n, and last of
all its Ending in FOLDER/n/ended.json. The tasks of a lane run one after the other, lanes side by side.

torch is loaded once, here, and the ranks are forked from it.
"""

import gc

gc.disable()  # until everything is loaded: each collection on the way would go through all of torch again

# ruff: noqa: E402, because of the line above
import importlib
import json
import pickle
import shutil
import sys
from dataclasses import asdict, replace
from multiprocessing.connection import wait
from pathlib import Path

from ddp_course.base.command import catch_interrupts
from ddp_course.grader.harness.job import Call, Ending, LogsOf, Task, run_of
from ddp_course.grader.harness.notes import read_events
from ddp_course.grader.harness.rank import run_rank
from ddp_course.launcher import forked
from ddp_course.launcher.fair_clock import FairClock

CONTEXT = forked.context("fork")
TO_LOAD = 0.0 if forked.FORKS else 15.0  # seconds that a rank may need to load torch
TO_MEET = 1.0  # seconds that the ranks may need to meet, before the answer begins
OWNER_SECONDS = 60.0  # for all jobs of one answer together: for what would never end, not for what is slow
GRACE = 1.5  # seconds for the others once one rank has failed, and past its time for a rank that cannot be asked
POLL = 0.05  # seconds; a rank's sentinel alone would miss its end if the answer has forked


def main(folder: Path):
    tasks = pickle.loads((folder / "tasks.pickle").read_bytes())  # written by the grading process, not by an answer
    for name in {name for task in tasks for name in task.job.loads} if forked.FORKS else ():
        importlib.import_module(name)
    gc.collect()  # or each rank of the first job would do it, and copy every page that it looks at
    gc.enable()
    lanes: dict[int, list[tuple[int, Task]]] = {}
    for n, task in enumerate(tasks):
        lanes.setdefault(task.lane, []).append((n, task))
    if list(lanes) == [0]:
        return run_lane(folder, lanes[0])
    started = [CONTEXT.Process(target=run_lane, args=(folder, numbered)) for numbered in lanes.values()]
    for process in started:
        process.start()
    for process in started:
        process.join()


def run_lane(folder: Path, numbered: list[tuple[int, Task]]):
    """Run tasks one after the other; each comes with its number."""
    left, failed, logs = {task.owner: OWNER_SECONDS for _, task in numbered}, set(), {}
    stores = Stores()
    for number, task in numbered:
        owner, job = task.owner, task.job
        seconds = min(job.seconds, left[owner])
        if owner in failed or seconds < 0.5:
            continue
        task = replace(task, job=replace(job, seconds=seconds, calls=_with_logs(job.calls, logs, owner)))
        task_folder = folder / str(number)
        for again in reversed(range(job.tries)):
            shutil.rmtree(task_folder, ignore_errors=True)
            task_folder.mkdir()
            ending, seconds = run_task(task, task_folder, stores.fresh_port())
            left[owner] -= max(0.0, seconds - TO_LOAD)
            if not (again and ending.time_was_up):
                break
        ending.collectives = logs[run_of(job, owner)] = [collectives(task_folder, rank) for rank in range(job.world)]
        if any(ending.exit_codes) and not job.may_fail:
            failed.add(owner)  # what follows would only say it again
        task_folder.mkdir(parents=True, exist_ok=True)  # an answer may have removed it
        (task_folder / "ended.json").write_text(json.dumps(asdict(ending)))
    stores.close()


def run_task(task: Task, folder: Path, port: int) -> tuple[Ending, float]:
    """Start the ranks of `task`, and wait for their end or bring it about; its Ending without the collectives, and the
    seconds that it took.

    port: of the store through which they meet. All limits are in seconds of a FairClock, so that a machine that is
    busy with other things does not make an answer wrong.
    """
    job = task.job
    time_is_up, ring = CONTEXT.Pipe(duplex=False)
    ranks = [
        CONTEXT.Process(target=run_rank, args=(task, rank, port, folder, time_is_up, ring)) for rank in range(job.world)
    ]
    for process in ranks:
        process.start()
    clock = FairClock()  # now: it does not see how long this process waits for a core in order to start them
    limit, last = TO_LOAD + TO_MEET + job.seconds, float("inf")
    longest_wait = min(job.patience, job.seconds)
    killed, stood_still = [], False
    while running := [process for process in ranks if process.exitcode is None]:
        wait([process.sentinel for process in running], timeout=POLL)
        clock.look()
        if not ring.closed and (clock.seconds > limit or clock.still > longest_wait):
            stood_still = clock.still > longest_wait
            ring.close()  # each rank notes where it is, and ends
            last = min(last, clock.seconds + GRACE)
        if any(process.exitcode for process in ranks):
            last = min(last, clock.seconds + GRACE)
        if clock.seconds > last:
            killed = [rank for rank, process in enumerate(ranks) if process.exitcode is None]
            for process in running:
                process.kill()
                process.join()
    time_was_up = ring.closed
    ring.close()
    time_is_up.close()
    return Ending([process.exitcode for process in ranks], killed, time_was_up, stood_still), clock.seconds


class Stores:
    """Holds the key-value store through which the ranks of a job meet. Each job gets one of its own, on a free port.

    In a process of its own: the one that forks must not have threads.
    """

    def __init__(self):
        self.process = None

    def fresh_port(self):
        """The port of a new store, also if an answer has ended or halted the process that held the last one."""
        for _ in range(2):
            if self.process is None:
                self.connection, theirs = CONTEXT.Pipe()
                self.process = CONTEXT.Process(target=_serve_stores, args=(theirs,), daemon=True)
                self.process.start()
                theirs.close()  # so that its end is seen here
            try:
                self.connection.send("another")
                if self.connection.poll(TO_LOAD + TO_MEET):
                    return self.connection.recv()
            except (EOFError, OSError):
                pass
            self.close()
        raise RuntimeError("no process for the store could be started")

    def close(self):
        if self.process:
            self.connection.close()
            self.process.kill()
            self.process.join()
            self.process = None


def _serve_stores(connection):
    store = None
    while connection.recv():
        del store
        store = forked.open_store()
        connection.send(store.port)


def _with_logs(calls: tuple[Call, ...], logs: dict, owner: int) -> tuple[Call, ...]:
    """`calls` with the collectives of a job in place of each LogsOf it."""

    def filled(argument):
        return logs.get(run_of(argument.job, owner), []) if isinstance(argument, LogsOf) else argument

    return tuple(replace(call, args=[tuple(map(filled, arguments)) for arguments in call.args]) for call in calls)


def collectives(folder: Path, rank: int) -> list[str]:
    """The collectives that a rank started, in order, such as "all_reduce, line 12"; no sends and receives."""
    operations = [operation for call in read_events(folder, rank).operations for operation in call]
    return [
        f"{operation.op}, line {operation.line}" for operation in operations if operation.op not in ("send", "recv")
    ]


if __name__ == "__main__":
    catch_interrupts()  # an answer's ranks, forked from here, get Ctrl-C as any Python program does
    main(Path(sys.argv[1]))
    gc.freeze()  # nothing is left to be collected, and to look for it Python would go through all of torch
