"""One rank of one job: run the answer and write down what it did, line by line, so that nothing is lost if it dies.

A line of the notes is one JSON object: an operation (see record.py), or one of
    {"call": 2}                  call number 2 of the function begins
    {"returned": ..., "after": [...]}    what it returned, and its tensor arguments as they are now
    {"raised": {...}}, {"left": 3}, {"stuck": 12}, {"missing": "name", "there": [...]}, {"ended": true}
"""

import functools
import gc
import importlib.util
import json
import linecache
import os
import resource
import runpy
import sys
import threading
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
from record import Recorder, in_new_threads, line_in

LARGEST_FILE = 64 * 2**20  # bytes that a rank may print, or write to one file
STUCK = 17  # exit code of a rank that did not end in time
LONGEST_NOTE = 4 * 2**20


class Notes:
    """Appends JSON lines to a file, each in one write: what was noted survives whatever comes next.

    A process that the answer forked ends at the first thing it would note, instead of going on as a second rank.
    """

    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.pid = os.getpid()

    def __call__(self, entry):
        if os.getpid() != self.pid:
            os._exit(0)
        line = json.dumps(entry).encode()
        if len(line) > LONGEST_NOTE:
            line = json.dumps({"returned": {"repr": "something very large"}, "after": []}).encode()
        os.write(self.file, line + b"\n")


def run_rank(job, rank, port, folder, time_is_up, ring):
    """Run `job` as `rank`; notes, stdout and stderr go to files in `folder`. The exit code is the answer's own.

    time_is_up, ring: the ends of a pipe. The time is up when nobody holds `ring` any more.
    """
    ring.close()
    _settle(job, rank, port, folder)
    gc.freeze()  # a collection in the answer need not go through all of torch, nor copy its pages: a third of a second
    answer = job["path"]
    notes = Notes(folder / f"rank_{rank}.jsonl")
    _watch(time_is_up, notes, answer)
    in_new_threads(notes, answer)
    try:
        if job["function"] is None:
            with Recorder(notes, answer):
                runpy.run_path(answer, init_globals={"hash": hash_of_rank(rank)}, run_name="__main__")
        else:
            _call_function(job, rank, port, notes)
        notes({"ended": True})
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        notes({"left": code} if code or job["function"] else {"ended": True})
        raise
    except BaseException as error:
        notes({"raised": _described(error, answer)})
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # at once, so that the other ranks hear of it: no handler of the answer can hold it up


def _settle(job, rank, port, folder):
    """Environment, working folder and output as a rank of torchrun has them, with a bound on what it writes."""
    world = job["world"]
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    work = folder / "work"
    work.mkdir(exist_ok=True)
    os.chdir(work)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(folder / f"rank_{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, descriptor)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.argv = [job["path"]]
    sys.path[0] = os.path.dirname(job["path"])  # as if the answer were the script; hides our own modules from it
    torch.default_generator.manual_seed(rank)  # torch.manual_seed would also look for accelerators


def _watch(time_is_up, notes, answer):
    """A thread that ends this process when the time is up, having noted the line of the answer that it is in."""
    main = threading.get_ident()

    def expire():
        time_is_up.poll(None)
        line = line_in(answer, sys._current_frames().get(main))
        if line is None:
            time.sleep(0.5)  # another rank has gone a moment ago, and this one is about to say what it raised
        notes({"stuck": line})
        os._exit(STUCK)

    threading.Thread(target=expire, daemon=True).start()


def _call_function(job, rank, port, notes):
    answer, world = job["path"], job["world"]
    timeout = timedelta(minutes=5)  # never reached: who waits for too long is ended by its watch
    store = dist.TCPStore("127.0.0.1", port, world, is_master=False, timeout=timeout)
    group_store = dist.PrefixStore("group", store)
    dist.init_process_group("gloo", store=group_store, rank=rank, world_size=world, timeout=timeout)
    with Recorder(notes, answer):
        module = _load("answer", answer, hash=hash_of_rank(rank))
        function = getattr(module, job["function"], None)
        if not callable(function):
            there = [name for name, value in vars(module).items() if callable(value) and value.__module__ == "answer"]
            notes({"missing": job["function"], "there": there})
            return
        if job["driver"]:
            function = functools.partial(_load("driver", job["driver"]).drive, function)
        for number, arguments in enumerate(job["calls"]):
            arguments = arguments[rank]
            notes({"call": number})
            result = function(*arguments)
            notes({"returned": encoded(result), "after": [encoded(a) for a in arguments if torch.is_tensor(a)]})
    # Nobody leaves while another still needs the connection.
    store.set(f"done/{rank}", "")
    store.wait([f"done/{other}" for other in range(world)])
    dist.destroy_process_group()


def hash_of_rank(rank):
    """What `hash` is to the answer: of a text, another number on each rank, as in processes that were not forked."""

    def hash_here(value):
        return hash((rank, hash(value))) if _holds_text(value) else hash(value)

    return hash_here


def _holds_text(value):
    return isinstance(value, (str, bytes)) or (isinstance(value, (tuple, frozenset)) and any(map(_holds_text, value)))


def _load(name, path, **given):
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    vars(module).update(given)
    spec.loader.exec_module(module)
    return module


def encoded(value):
    """`value` for JSON: plain values as they are; tensors, tuples and dicts with a mark; of others their repr."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if torch.is_tensor(value):
        value = value.detach().cpu()
        return {"tensor": value.flatten().tolist(), "dtype": str(value.dtype)[6:], "shape": list(value.shape)}
    if isinstance(value, (list, tuple)):
        return [encoded(one) for one in value]
    if isinstance(value, dict):
        return {"dict": [[encoded(key), encoded(one)] for key, one in value.items()]}
    return {"repr": repr(value)[:200]}


def _described(error, answer):
    """What was raised, and the last line of the answer on the way there."""
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
