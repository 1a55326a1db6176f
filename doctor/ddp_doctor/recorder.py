"""Runs inside each rank, beside the script: writes down what the doctor can read when the rank is gone.

Standard library only, and never the first to import torch. In the doctor's folder, by pid:

    PID.status    JSON, replaced up to twenty times a second: time, the main thread's stack, the exception that it
                  handles, and for each process group the numbers of the last collective started and finished
    PID.history   JSON, replaced when it has grown: torch's flight recorder, with the Python stack of each collective
    PID.events    JSON lines: start, the process group, an exception that nobody caught, sys.exit and os._exit with
                  their line
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
import json
import os
import pickle
import sys
import threading
import time

POLL = 0.05  # seconds between two looks
SHARE = 0.05  # of the time, at most, is spent on writing a file while it grows
QUIET = 0.3  # seconds without a new collective after which it is written in any case
DEEPEST = 60  # frames of a stack
SLOTS, SLOT = 64, 4096  # how many calls are kept, and bytes for each


def start(folder, spawn_variables=None):
    """Begins to record this process into `folder`, and what it starts by `multiprocessing` as long as it has no group:
    those may be ranks. `spawn_variables`: with these in its environment a process of ours loads this recorder."""
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
    from multiprocessing import util

    former = util.spawnv_passfds

    def spawnv_passfds(path, args, passfds):
        if "--multiprocessing-fork" not in map(os.fsdecode, args) or _has_group():
            return former(path, args, passfds)
        own = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            return former(path, args, passfds)
        finally:
            for name, value in own.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    util.spawnv_passfds = spawnv_passfds


def _has_group():
    return getattr(_world(), "default_pg", None) is not None


def _world():
    return getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)


class Recorder:
    def __init__(self, folder):
        self.pid = os.getpid()
        self.path = os.path.join(folder, str(self.pid))
        self.fatal = open(self.path + ".fatal", "w")  # stays open: faulthandler writes to it when all else is lost
        self.main_thread = threading.main_thread().ident
        self.stopping = threading.Event()
        self.calls = None  # file descriptor of PID.calls
        self.call_count = 0
        self.follows_workers = False
        self.group = None  # size and rank of the default process group
        self.shut_down = None  # id of the default process group that the script has destroyed
        self.groups = {}  # name -> name and ranks; kept when the group is destroyed
        self.stack, self.progress, self.moved = [], {}, 0.0
        self.written, self.settled, self.next_history = {}, True, 0.0

    def event(self, kind, **facts):
        """Appends one line to PID.events; nothing in a process that this one has forked."""
        if os.getpid() != self.pid:
            return
        line = json.dumps({"event": kind, "time": time.time(), **facts}) + "\n"
        with open(self.path + ".events", "ab", buffering=0) as file:  # one write: a thread may append at the same time
            file.write(line.encode())

    def watch(self):
        with contextlib.suppress(OSError), open("/proc/thread-self/comm", "w") as name:
            name.write("ddp_doctor")  # so that what it writes is not taken for the script's
        while not self.stopping.wait(POLL):
            try:
                self.look()
            except Exception as error:  # a rank must not notice that it is watched
                self.event("recorder failed", text=repr(error))
                return

    def look(self, last=False):
        """Writes the status if it changed, and the history if it has grown."""
        if self.calls is None and _dumps():
            self.calls = os.open(self.path + ".calls", os.O_WRONLY | os.O_CREAT, 0o600)
            _note_calls(sys.modules["torch._C._distributed_c10d"].ProcessGroup)
        loaders = sys.modules.get("torch.utils.data._utils.signal_handling")
        if loaders is not None and not self.follows_workers and hasattr(loaders, "_set_worker_signal_handlers"):
            self.follows_workers = True
            _let_workers_leave_a_stack(loaders)
        progress = self.read_progress()
        if not _has_group():
            self.shut_down = None
        if self.group is None and _has_group() and id(_world().default_pg) != self.shut_down:
            self.group = _world().default_pg.size(), _world().default_pg.rank()
            self.event("group", world_size=self.group[0], rank=self.group[1])
        elif self.group and not _has_group():
            self.group = None
            self.event("group destroyed")
        if progress != self.progress:
            self.moved = time.monotonic()
        stack = _stack(sys._current_frames().get(self.main_thread))
        if last or any(file == __file__ for file, _, _ in stack):  # it ends, and stands in here
            stack = self.stack if progress == self.progress else []
        if (stack, progress) != (self.stack, self.progress):
            self.stack, self.progress = stack, progress
            handled = _handled(self.main_thread)
            handled = handled and _first_of_chain(handled)
            self.replace(".status", {"time": time.time(), "stack": stack, "progress": progress, "handled": handled})
        quiet = time.monotonic() - self.moved > QUIET
        grown = progress != self.written or not self.settled
        if progress and (last or (grown and (quiet or time.monotonic() >= self.next_history))):
            begin = time.thread_time()
            self.write_history()
            # torch counts a collective before it notes it, so once more when all is quiet
            self.written, self.settled = progress, quiet
            self.next_history = time.monotonic() + (time.thread_time() - begin) / SHARE

    def last_look(self):
        """Record what is not yet written when this process is about to end."""
        try:
            self.look(last=True)
        except Exception as error:
            self.event("recorder failed", text=repr(error))

    def end(self, thread):
        if os.getpid() != self.pid:
            return
        self.stopping.set()
        thread.join(2)
        self.last_look()

    def note_call(self, name, group, arguments):
        if self.calls is None or os.getpid() != self.pid:
            return
        sent = 0 if name in ("all_reduce", "broadcast", "reduce", "scatter") else 1
        tensors = list(_tensors(arguments[sent : sent + 1]))
        call = {
            "name": name,
            "time": time.time_ns(),
            "group": group.group_name,
            "sizes": [list(tensor.shape) for tensor in tensors],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors],
            "root": getattr(arguments[-1], "rootRank", None) if arguments else None,
            "stack": _stack(sys._getframe(2)),
        }
        line = json.dumps(call).encode()
        while len(line) >= SLOT and call["stack"]:
            call["stack"], call["sizes"] = call["stack"][: len(call["stack"]) // 2], call["sizes"][:8]
            line = json.dumps(call).encode()
        os.pwrite(self.calls, line.ljust(SLOT), SLOT * (self.call_count % SLOTS))
        self.call_count += 1

    def note_shutdown(self, group):
        """Two looks can miss a group that is made, used and destroyed between them."""
        if os.getpid() == self.pid and group is _world().default_pg:
            self.shut_down = id(group)
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
        with _inductor_unloaded():
            dumps = [pickle.loads(dump(True, True, False)) for dump in _dumps()]
        whole = {"entries": [entry for dump in dumps for entry in dump.get("entries", [])]}
        world = _world()
        if world is not None:
            for group, ranks in list(world.pg_group_ranks.items()):
                name = world.pg_names.get(group)
                if name is not None:
                    self.groups[str(name)] = {"name": str(name), "ranks": str(sorted(ranks))}
        whole["pg_config"] = self.groups  # gloo leaves it empty: what NCCL would say
        self.replace(".history", whole)

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
    """Stands for torch._inductor as long as nobody has asked for it; who asks now gets the real one."""

    def __getattr__(self, name):
        if name == "codecache":
            raise AttributeError(name)
        return getattr(importlib.import_module("torch._inductor"), name)


@contextlib.contextmanager
def _inductor_unloaded():
    """For a stack, torch looks whether it has compiled code, and would import torch._inductor for it: a second of CPU
    time, in the middle of what the script imports itself."""
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
    """torch gives a DataLoader's worker signal handlers of its own, which would replace faulthandler's."""
    former = module._set_worker_signal_handlers

    def set_worker_signal_handlers():
        faulthandler.disable()
        former()
        faulthandler.enable(_recorder.fatal, all_threads=True)

    module._set_worker_signal_handlers = set_worker_signal_handlers


COLLECTIVES = {
    "allreduce": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather_base",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter_base",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "barrier": "barrier",
}


def _note_calls(process_group):
    """DDP's own collectives start in C++ and are not noted here: for those there is the stack."""

    def noting(name, former):
        def call(self, *args, **kwargs):
            try:
                _recorder.note_call(name, self, args)
            except Exception:  # nothing of it may reach the script
                pass
            return former(self, *args, **kwargs)

        return call

    for method, name in COLLECTIVES.items():
        setattr(process_group, method, noting(name, getattr(process_group, method)))
    former_shutdown = process_group.shutdown

    def shutdown(self):
        with contextlib.suppress(Exception):
            _recorder.note_shutdown(self)
        return former_shutdown(self)

    process_group.shutdown = shutdown


def _tensors(arguments):
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            yield from _tensors(argument)
        elif hasattr(argument, "dtype"):
            yield argument


def _handled(thread):
    """The exception in whose `except` or `finally` a thread stands."""
    error = sys._current_exceptions().get(thread)
    return error[1] if isinstance(error, tuple) else error  # Python 3.11 gives type, exception and traceback


def _stack(frame):
    """[[file, line, function], ...] from the innermost frame out."""
    frames = []
    while frame is not None and len(frames) < DEEPEST:
        frames.append([frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name])
        frame = frame.f_back
    return frames


def _note_exits():
    """Notes who leaves, and from where, without changing what happens."""
    former_hook, former_exit, former_os_exit = sys.excepthook, sys.exit, os._exit

    def excepthook(kind, error, traceback):
        try:
            _recorder.event("exception", **_first_of_chain(error))
            _recorder.last_look()  # torchrun may end this rank before it gets to its own end
        finally:
            former_hook(kind, error, traceback)

    def thread_hook(args, former=threading.excepthook):
        try:
            if args.exc_value is not None:
                _recorder.event("exception in a thread", **_first_of_chain(args.exc_value))
        finally:
            former(args)

    def leave(code=None):
        _recorder.event("sys.exit", status=repr(code), stack=_stack(sys._getframe(1)))
        if code and (error := sys.exc_info()[1]) is not None and not isinstance(error, SystemExit):
            _recorder.event("exception", **_first_of_chain(error))  # as torch.multiprocessing ends its ranks
        former_exit(code)

    def leave_at_once(status):
        if os.getpid() == _recorder.pid:
            _recorder.event("os._exit", status=repr(status), stack=_stack(sys._getframe(1)))
            _recorder.last_look()
        former_os_exit(status)

    sys.excepthook, threading.excepthook, os._exit = excepthook, thread_hook, leave_at_once
    sys.exit = builtins.exit = builtins.quit = leave


def _first_of_chain(error):
    """The first exception of a chain: its type, text and stack, innermost first."""
    while "DataLoader worker" not in str(error):  # torch raises that from what it came to know it by
        earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if earlier is None:
            break
        error = earlier
    stack, traceback = [], error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        stack.insert(0, [code.co_filename, traceback.tb_lineno, code.co_name])
        traceback = traceback.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        stack.insert(0, [error.filename, error.lineno or 0, "<module>"])
    return {"type": type(error).__name__, "text": str(error), "stack": stack[:DEEPEST]}
