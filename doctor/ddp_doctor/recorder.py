"""Runs inside each rank, in a thread of its own, and writes files that the doctor can read when the rank is gone.

It imports the standard library only, and torch never before the script does. Its files in the doctor's folder:

    PID.status    JSON, replaced up to twenty times a second: time, the main thread's stack, the exception that it
                  handles, and for each process group the numbers of the last collective started and finished
    PID.history   JSON, replaced when it has grown: torch's flight recorder, with the Python stack of each collective
    PID.events    JSON lines: the start, the process group, uncaught exceptions, and calls of sys.exit and os._exit
                  with their stacks
    PID.calls     JSON in slots: the newest collectives that Python has called, each written before it starts, because
                  gloo may abort in it
    PID.fatal     text of faulthandler: the stacks at SIGSEGV, SIGABRT, SIGBUS, SIGFPE and SIGILL
"""

import atexit
import builtins
import contextlib
import faulthandler
import functools
import importlib
import itertools
import json
import os
import pickle
import sys
import threading
import time
import traceback

POLL = 0.05  # seconds between two looks
SHARE = 0.05  # of the time, at most, is spent on writing PID.history while it grows
QUIET = 0.3  # seconds without a new collective after which PID.history is written in any case
DEEPEST = 60  # recorded frames of a stack
SLOTS, SLOT = 64, 4096  # slots in PID.calls, and bytes of each


def start(folder, spawn_variables=None):
    """Begins to record this process into `folder`.

    The processes that it starts by `multiprocessing` before it has a process group may be ranks, and are recorded, too.
    spawn_variables: the environment variables with which a new Python loads this recorder.
    """
    _record(folder)
    _note_exits()
    os.register_at_fork(after_in_child=lambda: None if _has_group() else _record(folder))
    if spawn_variables:
        _follow_spawned(spawn_variables)


def _record(folder):
    global _recorder
    _recorder = recorder = Recorder(folder)
    recorder.event("start", pid=recorder.pid, main_thread=recorder.main_thread, rank=int(os.environ["RANK"]))
    faulthandler.enable(recorder.fatal, all_threads=True)
    thread = threading.Thread(target=recorder.watch, name="ddp_doctor", daemon=True)
    atexit.register(recorder.end, thread)
    thread.start()


def _follow_spawned(variables):
    """Adds the variables to the environment of processes that multiprocessing spawns, as long as there is no group."""
    from multiprocessing import util

    original = util.spawnv_passfds

    def spawnv_passfds(path, args, passfds):
        if "--multiprocessing-fork" not in map(os.fsdecode, args) or _has_group():
            return original(path, args, passfds)
        former = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            return original(path, args, passfds)
        finally:
            for name, value in former.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    util.spawnv_passfds = spawnv_passfds


def _has_group():
    return getattr(_world(), "default_pg", None) is not None


def _world():
    """torch's global state of process groups; None if torch.distributed is not imported."""
    return getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)


class Recorder:
    """Records one process. A thread calls `look`; hooks in the script's calls use the other methods."""

    def __init__(self, folder):
        self.pid = os.getpid()
        self.path = os.path.join(folder, str(self.pid))
        self.fatal = open(self.path + ".fatal", "w")  # stays open: faulthandler writes to it when all else is lost
        self.main_thread = threading.main_thread().ident
        self.stopping = threading.Event()
        self.calls = None  # file descriptor of PID.calls
        self.call_count = 0
        self.follows_workers = False
        self.group = None  # (size, rank) of the default process group
        self.shut_down = None  # id of the default process group that the script has shut down
        self.groups = {}  # name -> name and ranks; kept when the group is destroyed
        self.stack, self.progress, self.progress_time = [], {}, 0.0  # as of the last look; when progress last changed
        self.written_progress, self.settled, self.next_history = {}, True, 0.0  # of PID.history

    def event(self, kind, **facts):
        """Appends one line to PID.events; nothing in a process that this one has forked."""
        if os.getpid() != self.pid:
            return
        line = json.dumps({"event": kind, "time": time.time(), **facts}) + "\n"
        with open(self.path + ".events", "ab", buffering=0) as file:  # one write: a thread may append at the same time
            file.write(line.encode())

    def watch(self):
        """The thread: looks until the process ends, or a look fails."""
        while not self.stopping.wait(POLL) and self.look():
            pass

    def look(self, last=False):
        """Takes a look; returns whether it succeeded: no error of the recorder may reach the script.

        last: the process is about to end.
        """
        try:
            self._look(last)
            return True
        except Exception as error:
            self.event("recorder failed", text=repr(error))
            return False

    def _look(self, last):
        """Installs the hooks for what the script has imported; writes status and history if they have changed."""
        if self.calls is None and _dumps():
            self.calls = os.open(self.path + ".calls", os.O_WRONLY | os.O_CREAT, 0o600)
            _note_calls(sys.modules["torch._C._distributed_c10d"].ProcessGroup)
        loaders = sys.modules.get("torch.utils.data._utils.signal_handling")
        if loaders is not None and not self.follows_workers and hasattr(loaders, "_set_worker_signal_handlers"):
            self.follows_workers = True
            _let_workers_leave_a_stack(loaders)
        progress = self.read_progress()
        self._note_group()
        if progress != self.progress:
            self.progress_time = time.monotonic()
        self._write_status(progress, last)
        quiet = time.monotonic() - self.progress_time > QUIET
        grown = progress != self.written_progress or not self.settled
        if progress and (last or (grown and (quiet or time.monotonic() >= self.next_history))):
            begin = time.thread_time()
            self.write_history()
            # torch counts a collective before it records it, so write once more when no new one comes
            self.written_progress, self.settled = progress, quiet
            self.next_history = time.monotonic() + (time.thread_time() - begin) / SHARE

    def _note_group(self):
        """Writes an event if the default process group was created or destroyed since the last look."""
        if not _has_group():
            self.shut_down = None
        if self.group is None and _has_group() and id(_world().default_pg) != self.shut_down:
            self.group = _world().default_pg.size(), _world().default_pg.rank()
            self.event("group", world_size=self.group[0], rank=self.group[1])
        elif self.group and not _has_group():
            self.group = None
            self.event("group destroyed")

    def _write_status(self, progress, last):
        stack = _stack(sys._current_frames().get(self.main_thread))
        in_a_hook = any(file == __file__ for file, _, _ in stack)
        if last or in_a_hook:  # then it is not the script's stack
            stack = self.stack if progress == self.progress else []
        if (stack, progress) != (self.stack, self.progress):
            self.stack, self.progress = stack, progress
            error = _handled(self.main_thread)
            handled = _first_of_chain(error) if error else None
            self.replace(".status", {"time": time.time(), "stack": stack, "progress": progress, "handled": handled})

    def end(self, thread):
        """Stops the thread and looks a last time; nothing in a process that this one has forked."""
        if os.getpid() != self.pid:
            return
        self.stopping.set()
        thread.join(60)  # else what it writes on a slow disk would replace what this look writes
        self.look(last=True)

    def note_call(self, name, group, arguments):
        """Writes a collective that Python is about to call into the next slot of PID.calls, over the oldest one."""
        if self.calls is None or os.getpid() != self.pid:
            return
        inputs = 0 if name in ("all_reduce", "broadcast", "reduce", "scatter") else 1  # position among the arguments
        tensors = list(_tensors(arguments[inputs : inputs + 1]))
        call = {
            "name": name,
            "time": time.time_ns(),
            "group": group.group_name,
            "sizes": [list(tensor.shape) for tensor in tensors],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors],
            "root": getattr(arguments[-1], "rootRank", None) if arguments else None,
            "stack": _stack(sys._getframe(3)),
        }
        line = json.dumps(call).encode()
        while len(line) >= SLOT and call["stack"]:
            call["stack"], call["sizes"] = call["stack"][: len(call["stack"]) // 2], call["sizes"][:8]
            line = json.dumps(call).encode()
        os.pwrite(self.calls, line.ljust(SLOT), SLOT * (self.call_count % SLOTS))
        self.call_count += 1

    def note_shutdown(self, group):
        """Writes the event when the default group is shut down: `look` may miss it, and even that there was a group."""
        if os.getpid() == self.pid and group is _world().default_pg:
            self._note_group()
            self.shut_down, self.group = id(group), None
            self.event("group destroyed")

    def read_progress(self):
        """{group: [last started, last finished]} of all process groups; {} as long as there is none."""
        progress = {}
        for dump in _dumps():
            for name, status in pickle.loads(dump(False, False, False)).get("pg_status", {}).items():
                numbers = [int(status["last_enqueued_collective"]), int(status["last_completed_collective"])]
                progress[str(name)] = max(progress.get(str(name), numbers), numbers)
        return progress

    def write_history(self):
        """Writes the entries of all of torch's recorders, and the groups, as one dump."""
        with _without_inductor():
            dumps = [pickle.loads(dump(True, True, False)) for dump in _dumps()]
        history = {"entries": [entry for dump in dumps for entry in dump.get("entries", [])]}
        world = _world()
        if world is not None:
            for group, ranks in list(world.pg_group_ranks.items()):
                name = world.pg_names.get(group)
                if name is not None:
                    self.groups[str(name)] = {"name": str(name), "ranks": str(sorted(ranks))}
        history["pg_config"] = self.groups  # as NCCL fills it; gloo leaves it empty
        self.replace(".history", history)

    def replace(self, suffix, content):
        """Writes JSON so that a reader sees the old or the new file, whole."""
        if os.getpid() != self.pid:
            return
        new = f"{self.path}{suffix}.{threading.get_ident()}.new"
        with open(new, "w") as file:
            json.dump(content, file)
        os.replace(new, self.path + suffix)


def _dumps():
    """torch's functions that dump a flight recorder, once the script has imported torch.distributed; else none.

    _dump_fr_trace is gloo's. Where torch was built with NCCL, _dump_nccl_trace is ProcessGroupNCCL's. From 2.15 on the
    backend "nccl" is another one, unless TORCH_DIST_USE_NCCL2=0, and _dump_fr_trace takes a backend's name.
    """
    if not hasattr(sys.modules.get("torch.distributed.distributed_c10d"), "init_process_group"):
        return []
    bindings = sys.modules.get("torch._C._distributed_c10d")
    names = ("_dump_fr_trace", "_dump_nccl_trace")
    dumps = [getattr(bindings, name) for name in names if hasattr(bindings, name)]
    per_backend = [dump for dump in dumps if "backend:" in (dump.__doc__ or "")]  # its signature stands there
    return dumps + [functools.partial(dump, backend=name) for dump in per_backend for name in ("nccl2", "nccl-lazy")]


class _Inductor:
    """Stands for torch._inductor: any attribute but `codecache` imports the real module, and is taken from there."""

    def __getattr__(self, name):
        if name == "codecache":
            raise AttributeError(name)
        return getattr(importlib.import_module("torch._inductor"), name)


@contextlib.contextmanager
def _without_inductor():
    """Within it, a dump with stacks does not import torch._inductor, unless the script has done so.

    torch would import it to ask its `codecache` about compiled code: a second of CPU time, possibly in the middle of
    an import of the script's own.
    """
    torch = sys.modules["torch"]
    stand_in = None if "_inductor" in vars(torch) or "torch._inductor" in sys.modules else _Inductor()
    if stand_in:
        torch._inductor = stand_in
    try:
        yield
    finally:
        if stand_in and vars(torch).get("_inductor") is stand_in:
            del torch._inductor


def _let_workers_leave_a_stack(module):
    """Enables faulthandler after torch has set a DataLoader worker's signal handlers, which would replace its own."""
    original = module._set_worker_signal_handlers

    def set_worker_signal_handlers():
        faulthandler.disable()
        original()
        faulthandler.enable(_recorder.fatal, all_threads=True)

    module._set_worker_signal_handlers = set_worker_signal_handlers


COLLECTIVES = dict(  # method of torch's ProcessGroup: name of the collective
    pair.split("=")
    for pair in "allreduce=all_reduce broadcast=broadcast reduce=reduce allgather=all_gather gather=gather "
    "scatter=scatter _allgather_base=all_gather_base reduce_scatter=reduce_scatter barrier=barrier "
    "_reduce_scatter_base=reduce_scatter_base alltoall=all_to_all alltoall_base=all_to_all_single".split()
)


def _note_calls(process_group):
    """Wraps the methods of torch's ProcessGroup so that their calls are recorded.

    Collectives of DDP start in C++ and are not seen here; of those the stack shows the backward pass.
    """

    def note_before(method, note):
        original = getattr(process_group, method)

        def call(self, *args, **kwargs):
            with contextlib.suppress(Exception):  # no error of the recorder may reach the script
                note(self, args)
            return original(self, *args, **kwargs)

        setattr(process_group, method, call)

    for method, name in COLLECTIVES.items():
        note_before(method, lambda group, args, name=name: _recorder.note_call(name, group, args))
    note_before("shutdown", lambda group, args: _recorder.note_shutdown(group))


def _tensors(arguments):
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            yield from _tensors(argument)
        elif hasattr(argument, "dtype"):
            yield argument


def _handled(thread):
    """The exception that a thread handles, in an `except` or `finally` block; None if it handles none."""
    error = sys._current_exceptions().get(thread)
    return error[1] if isinstance(error, tuple) else error  # Python 3.11 gives type, exception and traceback


def _stack(frame):
    """[[file, line, function], ...] from the innermost frame out; [] without a frame."""
    return _entries(itertools.islice(traceback.walk_stack(frame), DEEPEST)) if frame else []


def _entries(frames_and_lines):
    return [[frame.f_code.co_filename, line, frame.f_code.co_name] for frame, line in frames_and_lines]


def _note_exits():
    """Records uncaught exceptions and calls of sys.exit and os._exit, which then have the same effect as before."""
    former_hook, former_thread_hook = sys.excepthook, threading.excepthook
    former_exit, former_os_exit = sys.exit, os._exit

    def excepthook(kind, error, error_traceback):
        try:
            _recorder.event("exception", **_first_of_chain(error))
            _recorder.look(last=True)  # torchrun may end this rank before it gets to its own end
        finally:
            former_hook(kind, error, error_traceback)

    def thread_hook(args):
        try:
            if args.exc_value is not None:
                _recorder.event("exception in a thread", **_first_of_chain(args.exc_value))
        finally:
            former_thread_hook(args)

    def leave(code=None):
        _recorder.event("sys.exit", status=repr(code), stack=_stack(sys._getframe(1)))
        if code and (error := sys.exc_info()[1]) is not None and not isinstance(error, SystemExit):
            _recorder.event("exception", **_first_of_chain(error))  # as torch.multiprocessing ends its ranks
        former_exit(code)

    def leave_at_once(status):
        if os.getpid() == _recorder.pid:
            _recorder.event("os._exit", status=repr(status), stack=_stack(sys._getframe(1)))
            _recorder.look(last=True)
        former_os_exit(status)

    sys.excepthook, threading.excepthook, os._exit = excepthook, thread_hook, leave_at_once
    sys.exit = builtins.exit = builtins.quit = leave


def _first_of_chain(error):
    """The first exception of a chain of causes and contexts: its type, text and stack, innermost first.

    Not further back than torch's error on a dead DataLoader worker, whose cause is how torch noticed it.
    """
    while "DataLoader worker" not in str(error):
        earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if earlier is None:
            break
        error = earlier
    stack = _entries(traceback.walk_tb(error.__traceback__))[::-1]
    if isinstance(error, SyntaxError) and error.filename:
        stack.insert(0, [error.filename, error.lineno or 0, "<module>"])
    return {"type": type(error).__name__, "text": str(error), "stack": stack[:DEEPEST]}
