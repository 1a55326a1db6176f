"""Run the answer in one rank of a job, and write notes of what it did: see notes.py."""

import functools
import gc
import importlib
import importlib.util
import inspect
import linecache
import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from ddp_course.grader.harness import pending
from ddp_course.grader.harness.job import Task
from ddp_course.grader.harness.notes import Notes
from ddp_course.grader.harness.record import Recorder, in_new_threads, line_in
from ddp_course.launcher.forked import rank_environment, run_script, set_up_process

LARGEST_FILE = 64 * 2**20  # bytes that a rank may print, or write to one file
STUCK = 17  # exit code of a rank that did not end in time
NEVER = timedelta(hours=1)  # a timeout not reached on a busy machine either: a rank that waits too long is ended before

_outcome = ""  # noted as RankRecord.last_outcome


def run_rank(task: Task, rank: int, port: int, folder: Path, reader: Connection, writer: Connection):
    """Run `task` as `rank`; notes, stdout and stderr go to files in `folder`. The exit code is the answer's own.

    reader, writer: the ends of a pipe. The time is up when no process holds `writer` any more.
    """
    writer.close()
    job, answer = task.job, str(task.path)
    work = folder / "work"
    work.mkdir(exist_ok=True)
    environment = os.environ | rank_environment(rank, job.world, port, job.per_node)
    set_up_process([answer], environment, work, folder / f"rank_{rank}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.default_generator.manual_seed(rank)  # torch.manual_seed would also look for accelerators
    gc.freeze()  # so that a collection in the answer does not go through all of torch, which would copy its pages
    notes = Notes(folder, rank)
    _end_when_time_is_up(reader, notes, answer)
    in_new_threads(notes, answer)
    pending.end_when_waited_for()
    try:
        if job.function is None:
            _meet(_store_of_the_ranks(port, job.world), "begun", rank, job.world)  # a script's own timeout may be short
            with Recorder(notes, answer):
                run_script(answer, hash=salted_hash())
            notes(pending.wait_faults())
        else:
            _call_function(task, rank, port, notes)
        notes({"ended": True})
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        notes({"sys_exit_code": code} if code or job.function else {"ended": True})
        raise
    except BaseException as error:
        notes(pending.wait_faults())
        notes({"raised": _error_note(error, answer), "last_outcome": _outcome})
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # at once, so that the other ranks see it; no exit handler of the answer can delay it


def _end_when_time_is_up(reader, notes, answer):
    """Start a thread that, when the time is up, notes the line of the answer in which this process is, and ends it."""
    main_thread = threading.get_ident()

    def expire():
        reader.poll(None)
        line = line_in(answer, sys._current_frames().get(main_thread))
        if line is None:
            time.sleep(0.5)  # another rank may have died just now, and this one be about to note its own error
        notes({"stuck": True, "line": line, "last_outcome": _outcome})
        os._exit(STUCK)

    threading.Thread(target=expire, daemon=True).start()


def _call_function(task: Task, rank: int, port: int, notes: Notes):
    """Import the answer, and make the job's calls of its function, or of its driver, in a process group."""
    job, answer = task.job, str(task.path)
    world = job.world
    store = _store_of_the_ranks(port, world)
    group_store = dist.PrefixStore("group", store)
    dist.init_process_group("gloo", store=group_store, rank=rank, world_size=world, timeout=NEVER)
    _meet(store, "connected", rank, world)  # no rank fails on its own while another one still connects to it
    with Recorder(notes, answer):
        module = _import_answer(answer, rank)
        function = getattr(module, job.function, None)
        if not callable(function):
            members = vars(module).items()
            defined = [name for name, value in members if callable(value) and value.__module__ == "answer"]
            notes({"missing": {"function": job.function, "defined": defined}})
            return
        if job.driver:
            function = functools.partial(importlib.import_module(f"{task.package}.driver").drive, _watched(function))
        for number, call in enumerate(job.calls):
            arguments = call.args[rank]
            notes({"call": number})
            result = function(*arguments)
            notes(pending.wait_faults())
            notes.returned(number, result, [argument for argument in arguments if torch.is_tensor(argument)])
    _meet(store, "done", rank, world)  # no rank leaves while another one still needs the connection
    dist.destroy_process_group()


def _store_of_the_ranks(port, world):
    return dist.TCPStore("127.0.0.1", port, world, is_master=False, timeout=NEVER)


def _meet(store, event, rank, world):
    """Wait until every rank has come to `event`."""
    store.set(f"{event}/{rank}", "")
    store.wait([f"{event}/{other}" for other in range(world)])


def _watched(function: Callable) -> Callable:
    """`function` for a driver, so that `_outcome` tells how its last call ended; a class or other callable as it is."""
    if not inspect.isfunction(function):
        return function

    @functools.wraps(function)
    def watched(*args, **kwargs):
        global _outcome
        _outcome = ""
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            _outcome = f"raised {traceback.format_exception_only(error)[-1].strip()[:200]}"
            raise
        _outcome = "returned"
        return result

    return watched


def salted_hash() -> Callable:
    """A `hash` for the answer that hashes text differently in each process, as if this one had not been forked."""
    salt = os.getpid()
    return lambda value: hash((salt, hash(value))) if _holds_text(value) else hash(value)


def _holds_text(value):
    return isinstance(value, (str, bytes)) or (isinstance(value, (tuple, frozenset)) and any(map(_holds_text, value)))


def _import_answer(path, rank):
    """Import the answer's file as the module `answer`, with a `hash` of this rank."""
    spec = importlib.util.spec_from_file_location("answer", path)
    module = sys.modules["answer"] = importlib.util.module_from_spec(spec)
    module.hash = salted_hash()
    spec.loader.exec_module(module)
    return module


def _error_note(error, answer):
    """RankRecord.raised: the error, and the last line of the answer in its traceback."""
    line = next((f.lineno for f in reversed(traceback.extract_tb(error.__traceback__)) if f.filename == answer), None)
    if isinstance(error, SyntaxError) and error.filename == answer:
        line = error.lineno
    return {
        "type": type(error).__name__,
        "text": str(error)[:1000],
        "line": line,
        "code": linecache.getline(answer, line or 0).strip(),
        "not_implemented": isinstance(error, NotImplementedError),
    }
