"""Run the jobs of a grading, one after the other, each on ranks of its own: python start.py FOLDER

FOLDER/jobs.pickle holds a list of dicts: world, path, function (None: a script), calls, seconds, patience, tries,
may_fail, driver, loads, owner.
Job number n leaves its ranks' notes in FOLDER/n, and last of all FOLDER/n/ended.json:
    {"exit_codes": by rank, negative: a signal, "ended_by_grader": ranks that had to be killed,
     "time_was_up": whether the ranks were told to end, "stood_still": and that because nothing moved any more,
     "collectives": by rank}

torch is loaded once, here, and the ranks are forked from it: four are up in a fifth of a second instead of five.
"""

import gc

gc.disable()  # until everything is loaded: a third of a second

# ruff: noqa: E402, because of the line above
import importlib
import json
import multiprocessing
import pickle
import shutil
import sys
from multiprocessing.connection import wait
from pathlib import Path

import rank as rank_process
import torch.distributed as dist
from fair_clock import FairClock

# Forking is not safe where system libraries start threads of their own; there each rank loads torch anew.
FORK = sys.platform == "linux"
HOW = multiprocessing.get_context("fork" if FORK else "spawn")
TO_LOAD = 0.0 if FORK else 15.0  # seconds that a rank may need to load torch
TO_MEET = 1.0  # seconds that the ranks may need to meet, before the answer begins
OWNER_SECONDS = 20.0  # for all jobs of one answer together
GRACE = 1.5  # seconds for the others once one rank has failed, and past its time for a rank that cannot be asked
POLL = 0.05  # seconds; a rank's sentinel alone would miss its end if the answer has forked


def main(folder):
    jobs = pickle.loads((folder / "jobs.pickle").read_bytes())
    left, failed, logs = {job["owner"]: OWNER_SECONDS for job in jobs}, set(), {}
    for name in {name for job in jobs for name in job["loads"]} if FORK else ():
        importlib.import_module(name)
    gc.collect()  # or each rank of the first job would do it, and copy every page that it looks at
    gc.enable()
    stores = Stores()
    for number, job in enumerate(jobs):
        owner = job["owner"]
        job["seconds"] = min(job["seconds"], left[owner])
        if owner in failed or job["seconds"] < 0.5:
            continue
        _fill_in_logs(job, logs)
        for again in reversed(range(job["tries"])):
            clock = FairClock()
            shutil.rmtree(folder / str(number), ignore_errors=True)
            (folder / str(number)).mkdir()
            ended = run_job(job, folder / str(number), stores.fresh_port(), clock)
            left[owner] -= max(0.0, clock.seconds - TO_LOAD)
            if not (again and ended["time_was_up"]):
                break
        ended["collectives"] = logs[number] = collectives(folder / str(number))
        if any(ended["exit_codes"]) and not job["may_fail"]:
            failed.add(owner)  # what follows would only say it again
        (folder / str(number) / "ended.json").write_text(json.dumps(ended))
    stores.close()


def run_job(job, folder, port, clock):
    """Start the ranks of `job`, wait for their end, or bring it about; return all but the collectives.

    port: of the store through which they meet. All limits are in seconds of `clock`, so that a machine that is busy
    with other things does not make an answer wrong.
    """
    time_is_up, ring = HOW.Pipe(duplex=False)
    ranks = [
        HOW.Process(target=rank_process.run_rank, args=(job, rank, port, folder, time_is_up, ring))
        for rank in range(job["world"])
    ]
    for process in ranks:
        process.start()
    limit, last = TO_LOAD + TO_MEET + job["seconds"], float("inf")
    longest_wait = min(job["patience"], job["seconds"])
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
    return {
        "exit_codes": [process.exitcode for process in ranks],
        "ended_by_grader": killed,
        "time_was_up": time_was_up,
        "stood_still": stood_still,
    }


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
                self.connection, theirs = HOW.Pipe()
                self.process = HOW.Process(target=_serve_stores, args=(theirs,), daemon=True)
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
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        connection.send(store.port)


def _fill_in_logs(job, logs):
    """Replace each argument {"logs_of": n} by the collectives that the ranks of job n started."""
    for call in job["calls"]:
        for arguments in call:
            for place, argument in enumerate(arguments):
                if isinstance(argument, dict) and "logs_of" in argument:
                    arguments[place] = logs.get(argument["logs_of"], [])


def collectives(folder):
    """By rank: the collectives it started, in order, such as "all_reduce, line 12"; no sends and receives."""
    logs = []
    for notes in sorted(folder.glob("rank_*.jsonl")):
        entries = [json.loads(line) for line in notes.read_text().splitlines()]
        operations = [entry for entry in entries if "op" in entry and entry["op"] not in ("send", "recv")]
        logs.append([f"{entry['op']}, line {entry['line']}" for entry in operations])
    return logs


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    gc.freeze()  # nothing is left to be collected, and to look for it takes half a second
