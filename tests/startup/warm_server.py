"""Forks the kernels and launches of tests from a process in which torch is loaded: python warm_server.py ADDRESS

For each request of warm_client.py: a process that waits, and, forked from it, the one that runs the script.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import random
import resource
import runpy
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import types

LOADED = (
    "numpy",
    "torch",
    "torch._dynamo",
    "torch.distributed.nn",
    "torch.distributed.run",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    "torch.utils.data.distributed",
    "ddp_course.minigpt_ddp",
    "ddp_course.grader.harness.rank",
    "ipykernel.kernelapp",
    "matplotlib.pyplot",
    "ddp_course.launcher",
    "ddp_course.lab.figures",
)


def serve(address: str) -> dict:
    """Returns each client's request in a process forked for it; the server itself stays until its parent is gone."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{address}.new")
    listening.listen(100)
    os.rename(f"{address}.new", address)  # a process that is started now finds it listening
    parent = os.getppid()
    while os.getppid() == parent:
        while True:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(-1, os.WNOHANG)[0]:
                    continue
            break
        if not select.select([listening], [], [], 0.5)[0]:
            continue
        client = listening.accept()[0]
        if os.fork() == 0:
            listening.close()
            return wait_for_twin(client)
        client.close()
    os._exit(0)


def enter_machine(pid: int):
    """Enters the mount, UTS and network namespaces of process `pid`; children enter its pid namespace, too."""
    libc, process = ctypes.CDLL(None, use_errno=True), os.pidfd_open(pid)
    if libc.setns(process, 0x00020000 | 0x04000000 | 0x20000000 | 0x40000000):  # CLONE_NEW...: in this order, and pid
        raise OSError(ctypes.get_errno(), f"cannot enter the namespaces of process {pid}")
    os.close(process)


def wait_for_twin(client: socket.socket) -> dict:
    """Returns the request in the process that is to run it; that process's parent waits here until it has ended."""
    length, descriptors, *_ = socket.recv_fds(client, 8, 3)
    size, text = int.from_bytes(length, "big"), b""
    while part := client.recv(size - len(text)):  # no byte more: those of signals may follow
        text += part
    if not text or len(text) < size:  # the client was killed while it asked
        os._exit(0)
    request = json.loads(text)
    if request["network"] != os.readlink("/proc/self/ns/net"):
        enter_machine(struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
    child = os.fork()
    if child == 0:
        os.setsid()
        client.close()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        return request
    for descriptor in descriptors:
        os.close(descriptor)
    ended = os.pidfd_open(child)
    while ended not in (ready := select.select([ended, client], [], [])[0]):
        try:
            numbers = client.recv(100) if client in ready else b""
        except ConnectionError:
            numbers = b""
        for number in numbers or [signal.SIGKILL]:  # the client is gone: it was killed
            try:
                os.killpg(child, number)
            except ProcessLookupError:  # it has not made its session yet
                os.kill(child, number)
        if not numbers:
            break
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(OSError):
        client.send(status.to_bytes(8, "big", signed=True))
    os._exit(0)


def prepare(request: dict):
    """Makes this process look like one that Python has just started with the command line of the request."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    os.sched_setaffinity(0, request["cores"])
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.path[:] = request["path"]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = open(0, closefd=False)
    sys.stdout = sys.__stdout__ = output(1, unbuffered, "strict")
    sys.stderr = sys.__stderr__ = output(2, True, "backslashreplace")
    twin, parent_of_this_process = os.getpid(), os.getppid
    os.getppid = lambda: request["parent"] if os.getpid() == twin else parent_of_this_process()
    tempfile.tempdir = None  # torch has looked for it already, in the server's environment
    random.seed()
    sys.modules["numpy"].random.seed()
    threads = int(os.environ.get("OMP_NUM_THREADS", len(request["cores"])))
    sys.modules["torch"].set_num_threads(threads)
    sys.modules["torch"].distributed.set_debug_level_from_env()


def output(descriptor: int, unbuffered: bool, errors: str) -> io.TextIOWrapper:
    """A stream for sys.stdout or sys.stderr, as Python makes it. `errors`: for letters that cannot be encoded."""
    raw = open(descriptor, "wb", 0 if unbuffered else -1, closefd=False)
    return io.TextIOWrapper(raw, "utf-8", errors, write_through=unbuffered)


def run(request: dict):
    """Runs the module or script of the request as __main__.

    A script gets a `hash` that differs between processes for text, as it does in processes that Python starts.
    """
    prepare(request)
    words = request["words"]
    sys.argv = words[1:] if words[0] == "-m" else words
    if words[:2] == ["-m", "torch.distributed.run"]:
        return sys.modules["torch.distributed.run"].main()
    if words[0] == "-m":
        return runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    if not request["safe_path"]:
        sys.path.insert(0, os.path.dirname(os.path.realpath(words[0])))
    main = types.ModuleType("__main__")
    main.__file__ = words[0]
    main.__builtins__ = __builtins__
    main.hash = sys.modules["ddp_course.grader.harness.rank"].salted_hash()
    sys.modules["__main__"] = main
    with open(words[0], "rb") as file:
        code = compile(file.read(), words[0], "exec")
    exec(code, main.__dict__)


def status_of(request: dict) -> int:
    """Runs the request, prints the traceback that Python would print, and returns the exit code that it would give."""
    try:
        run(request)
        return 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == __file__:  # without the frames of this file
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 130 if isinstance(error, KeyboardInterrupt) else 1


def end(status: int):
    """Ends this process as Python does: threads, atexit, the script's variables, output.

    What the server had loaded is not freed: that would copy the memory shared with it, and take longer than most
    scripts run.
    """
    threading._shutdown()  # waits for threads, as multiprocessing does where it has forked
    atexit._run_exitfuncs()
    names = vars(sys.modules["__main__"])
    if names is not globals():
        names.clear()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status & 0xFF)


os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # as ipykernel sets it before it is loaded
for name in LOADED:
    importlib.import_module(name)

gc.collect()
gc.freeze()
end(status_of(serve(sys.argv[1])))
