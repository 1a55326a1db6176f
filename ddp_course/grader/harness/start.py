"""Run the tasks of a grading, each on ranks of its own: python -m ddp_course.grader.harness.start FOLDER

FOLDER/tasks.pickle holds a list of Task. The ranks of task number n write their notes (see notes.py) into FOLDER/n;
after their end its Ending is written to FOLDER/n/ended.json. The tasks of a lane run one after the other, the lanes in
parallel.

This process loads torch once, and the ranks are forked from it.
"""

import gc

gc.disable()  # until everything is loaded: each collection before that would go through all of torch again

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
from ddp_course.grader.harness.job import Call, Ending, LogsOf, Task, run_key
from ddp_course.grader.harness.notes import read_events
from ddp_course.grader.harness.rank import run_rank
from ddp_course.launcher import forked
from ddp_course.launcher.fair_clock import FairClock

CONTEXT = forked.context("fork")
LOAD_SECONDS = 0.0 if forked.FORKS else 15.0  # that a rank may need to load torch
CONNECT_SECONDS = 1.0  # that the ranks may need to connect, before the answer begins
ANSWER_SECONDS = 60.0  # for all jobs of one answer together: it ends answers that hang, and is ample for slow ones
GRACE_SECONDS = 1.5  # until ranks are told to end, after another rank has failed; until they are killed after that
LEAST_SECONDS = 0.5  # with less time left, a job is not started
POLL_SECONDS = 0.05  # a rank's sentinel alone would miss its end if the answer has forked


def main(folder: Path):
    tasks = pickle.loads((folder / "tasks.pickle").read_bytes())  # written by the grading process, not by an answer
    if forked.FORKS:
        for name in {name for task in tasks for name in task.job.loads}:
            importlib.import_module(name)
    gc.collect()  # otherwise each rank of the first job would, and copy every page that the collection touches
    gc.enable()
    lanes: dict[int, list[tuple[int, Task]]] = {}
    for number, task in enumerate(tasks):
        lanes.setdefault(task.lane, []).append((number, task))
    if list(lanes) == [0]:
        return run_lane(folder, lanes[0])
    processes = [CONTEXT.Process(target=run_lane, args=(folder, lane_tasks)) for lane_tasks in lanes.values()]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def run_lane(folder: Path, numbered_tasks: list[tuple[int, Task]]):
    """Run the tasks of a lane one after the other, and write the Ending of each.

    A task does not run if an earlier one of its answer has failed, or if the answer's time is used up; nor does a
    script that has run for an earlier answer.
    """
    seconds_left = {task.answer_number: ANSWER_SECONDS for _, task in numbered_tasks}
    failed: set[int] = set()  # answer numbers
    logs: dict[object, list[list[str]]] = {}  # the collectives of each run, by run_key; also tells what has run
    stores = Stores()
    for number, task in numbered_tasks:
        answer_number, job = task.answer_number, task.job
        key = run_key(job, answer_number)
        limit = min(job.seconds, seconds_left[answer_number])
        if answer_number in failed or limit < LEAST_SECONDS or key in logs:
            continue
        task = replace(task, job=replace(job, seconds=limit, calls=_with_logs(job.calls, logs, answer_number)))
        task_folder = folder / str(number)
        for _ in range(job.tries):
            shutil.rmtree(task_folder, ignore_errors=True)
            task_folder.mkdir()
            ending, seconds = run_task(task, task_folder, stores.fresh_port())
            seconds_left[answer_number] -= max(0.0, seconds - LOAD_SECONDS)
            if not ending.time_was_up:
                break
        ending.collectives = [collectives(task_folder, rank) for rank in range(job.world)]
        logs[key] = ending.collectives
        if any(ending.exit_codes) and not job.may_fail:
            failed.add(answer_number)
        task_folder.mkdir(parents=True, exist_ok=True)  # an answer may have removed it
        (task_folder / "ended.json").write_text(json.dumps(asdict(ending)))
    stores.close()


def run_task(task: Task, folder: Path, port: int) -> tuple[Ending, float]:
    """Start the ranks of `task`, and wait until they end or have to be ended.

    port: that of the store through which the ranks connect. Limits are in seconds of a FairClock, so that an answer
    does not fail because other programs keep the machine busy.
    Returns the Ending, without the collectives, and the seconds that the ranks ran.
    """
    job = task.job
    reader, writer = CONTEXT.Pipe(duplex=False)  # closing `writer` tells the ranks that the time is up
    ranks = [
        CONTEXT.Process(target=run_rank, args=(task, rank, port, folder, reader, writer)) for rank in range(job.world)
    ]
    for process in ranks:
        process.start()
    clock = FairClock()  # created last: it cannot discount what this process waits for a core while it starts them
    limit = end_at = LOAD_SECONDS + CONNECT_SECONDS + job.seconds
    longest_wait = min(job.patience, job.seconds)
    killed, time_was_up, stood_still = [], False, False
    while running := [process for process in ranks if process.exitcode is None]:
        wait([process.sentinel for process in running], timeout=POLL_SECONDS)
        clock.update()
        failed = any(process.exitcode for process in ranks)
        if failed:
            end_at = min(end_at, clock.seconds + GRACE_SECONDS)
        waits = not failed and clock.idle_seconds > longest_wait
        if not writer.closed and (waits or clock.seconds > end_at):
            stood_still, time_was_up = waits, waits or end_at == limit
            writer.close()  # each rank notes its line, and ends
            end_at = clock.seconds + GRACE_SECONDS
        elif writer.closed and clock.seconds > end_at:
            killed = [rank for rank, process in enumerate(ranks) if process.exitcode is None]
            for process in running:
                process.kill()
                process.join()
    writer.close()
    reader.close()
    return Ending([process.exitcode for process in ranks], killed, time_was_up, stood_still), clock.seconds


class Stores:
    """Holds the key-value store through which the ranks of a job connect. Each job gets a new store, on a free port.

    The store runs in a process of its own, because it has threads, and the process that forks the ranks must have none.
    """

    def __init__(self):
        self.process = None

    def fresh_port(self):
        """The port of a new store, also if an answer has ended or halted the process that held the last one."""
        for _ in range(2):
            if self.process is None:
                self.connection, child_connection = CONTEXT.Pipe()
                self.process = CONTEXT.Process(target=_serve_stores, args=(child_connection,), daemon=True)
                self.process.start()
                child_connection.close()  # so that the death of the process is an EOFError here
            try:
                self.connection.send("new store")
                clock = FairClock()  # the process may wait for a core, or have been halted by an answer
                while clock.seconds <= LOAD_SECONDS + CONNECT_SECONDS:
                    if self.connection.poll(POLL_SECONDS):
                        return self.connection.recv()
                    clock.update()
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


def _with_logs(calls: tuple[Call, ...], logs: dict, answer_number: int) -> tuple[Call, ...]:
    """`calls`, each argument LogsOf(job) replaced by the collectives of that job; [] if it has not run."""

    def replaced(argument):
        return logs.get(run_key(argument.job, answer_number), []) if isinstance(argument, LogsOf) else argument

    return tuple(replace(call, args=[tuple(map(replaced, arguments)) for arguments in call.args]) for call in calls)


def collectives(folder: Path, rank: int) -> list[str]:
    """The collectives that a rank started, in order, such as "all_reduce, line 12"; no sends and receives."""
    operations = [operation for call in read_events(folder, rank).operations for operation in call]
    return [
        f"{operation.op}, line {operation.line}" for operation in operations if operation.op not in ("send", "recv")
    ]


if __name__ == "__main__":
    catch_interrupts()  # the ranks, forked from here, handle Ctrl-C as any Python program does
    main(Path(sys.argv[1]))
    gc.freeze()  # otherwise the collection at exit would go through all of torch
