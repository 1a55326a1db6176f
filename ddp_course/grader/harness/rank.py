"""One rank of one job: run the answer, and write down what it did (see notes.py)."""

import functools
import gc
import importlib
import importlib.util
import linecache
import os
import resource
import sys
import threading
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

from ddp_course.grader.harness import pending
from ddp_course.grader.harness.notes import Notes
from ddp_course.grader.harness.record import Recorder, in_new_threads, line_in
from ddp_course.launcher.forked import become, rank_environment, run_script

LARGEST_FILE = 64 * 2**20  # bytes that a rank may print, or write to one file
STUCK = 17  # exit code of a rank that did not end in time


def run_rank(task, rank, port, folder, time_is_up, ring):
    """Run `task` as `rank`; notes, stdout and stderr go to files in `folder`. The exit code is the answer's own.

    time_is_up, ring: the ends of a pipe. The time is up when nobody holds `ring` any more.
    """
    ring.close()
    job, answer = task.job, str(task.path)
    work = folder / "work"
    work.mkdir(exist_ok=True)
    environment = os.environ | rank_environment(rank, job.world, port)
    become([answer], environment, work, folder / f"rank_{rank}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.default_generator.manual_seed(rank)  # torch.manual_seed would also look for accelerators
    gc.freeze()  # a collection in the answer need not go through all of torch, nor copy its pages
    notes = Notes(folder, rank)
    _watch(time_is_up, notes, answer)
    in_new_threads(notes, answer)
    pending.end_when_waited_for()
    try:
        if job.function is None:
            with Recorder(notes, answer):
                run_script(answer, hash=hash_of_rank(rank))
            notes(pending.left_over())
        else:
            _call_function(task, rank, port, notes)
        notes({"ended": True})
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        notes({"left": code} if code or job.function else {"ended": True})
        raise
    except BaseException as error:
        notes(pending.left_over())
        notes({"raised": _described(error, answer)})
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # at once, so that the other ranks hear of it: no handler of the answer can hold it up


def _watch(time_is_up, notes, answer):
    """A thread that ends this process when the time is up, having noted the line of the answer that it is in."""
    main = threading.get_ident()

    def expire():
        time_is_up.poll(None)
        line = line_in(answer, sys._current_frames().get(main))
        if line is None:
            time.sleep(0.5)  # another rank has gone a moment ago, and this one is about to say what it raised
        notes({"stuck": True, "line": line})
        os._exit(STUCK)

    threading.Thread(target=expire, daemon=True).start()


def _call_function(task, rank, port, notes):
    job, answer = task.job, str(task.path)
    world = job.world
    timeout = timedelta(minutes=5)  # never reached: who waits for too long is ended by its watch
    store = dist.TCPStore("127.0.0.1", port, world, is_master=False, timeout=timeout)
    group_store = dist.PrefixStore("group", store)
    dist.init_process_group("gloo", store=group_store, rank=rank, world_size=world, timeout=timeout)
    with Recorder(notes, answer):
        module = _load("answer", answer, hash=hash_of_rank(rank))
        function = getattr(module, job.function, None)
        if not callable(function):
            there = [name for name, value in vars(module).items() if callable(value) and value.__module__ == "answer"]
            notes({"missing": {"missing": job.function, "there": there}})
            return
        if job.driver:
            function = functools.partial(importlib.import_module(f"{task.package}.driver").drive, function)
        for number, call in enumerate(job.calls):
            arguments = call.args[rank]
            notes({"call": number})
            result = function(*arguments)
            notes(pending.left_over())
            notes.returned(number, result, [argument for argument in arguments if torch.is_tensor(argument)])
    # Nobody leaves while another still needs the connection.
    store.set(f"done/{rank}", "")
    store.wait([f"done/{other}" for other in range(world)])
    dist.destroy_process_group()


def hash_of_rank(rank):
    """A `hash` for the answer that hashes text differently on each rank, as in processes that were not forked."""

    def hash_here(value):
        return hash((rank, hash(value))) if _holds_text(value) else hash(value)

    return hash_here


def _holds_text(value):
    return isinstance(value, (str, bytes)) or (isinstance(value, (tuple, frozenset)) and any(map(_holds_text, value)))


def _load(name, path, **attributes):
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    vars(module).update(attributes)
    spec.loader.exec_module(module)
    return module


def _described(error, answer):
    """The error, and the last line of the answer in its traceback."""
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
