"""Instead of importing torch, a process of a test's launch hands its work to a twin forked from warm_server.py.

The twin gets its standard streams and signals, runs in its namespaces, and the process ends with the twin's exit code.
These start as usual: a script with one of the words in COLD, a rank that the doctor watches, a process in another user
namespace, and torchrun if its command has the word in COLD_COMMAND.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import sys
from pathlib import Path

MODULES = "torch.distributed.run", "ddp_course.grader.harness.start", "ipykernel_launcher"
FORWARDED = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2
# Scripts with these words read memory or imports, which a fork shares with the server, or depend on Python's own start.
COLD = "getrusage", "measure_memory", "psutil", "/proc/self", "import_time", "start_debug_server", "debugpy"
if sys.version_info >= (3, 14):  # a loader's workers come from a fork server, which a forked rank cannot start
    COLD += ("num_workers",)


def namespace(kind: str) -> str:
    return os.readlink(f"/proc/self/ns/{kind}")


def command() -> list[str] | None:
    """The module or script that this process was started with, and its arguments; None if it has to start as usual."""
    words = sys.orig_argv[1:]
    while words and words[0] in ("-P", "-u"):
        words = words[1:]
    if words and os.path.basename(words[0]) == "torchrun":
        words = ["-m", "torch.distributed.run", *words[1:]]
    if words[:1] == ["-m"]:
        return words if words[1:2] and words[1] in MODULES and os.environ.get("COLD_COMMAND") not in words else None
    is_rank = {"TORCHELASTIC_RUN_ID", "LOCAL_RANK"} <= set(os.environ)
    if not (is_rank and words and words[0].endswith(".py")):
        return None
    try:
        text = Path(words[0]).read_text()
    except OSError:
        return None
    return None if any(word in text for word in COLD) else words


def hand_over(address: str):
    """Ends this process as its twin ended. Returns only if this process has to start as usual."""
    words = command()
    watched = "ddp_doctor_recorder" in sys.modules
    if words is None or watched or os.environ.get("WARM_USER_NAMESPACE") != namespace("user"):
        return
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(address)
    except OSError:
        return
    request = {
        "words": words,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": sys.path,
        "parent": os.getppid(),
        "network": namespace("net"),
        "safe_path": sys.flags.safe_path,
        "cores": sorted(os.sched_getaffinity(0)),
        "ignored": [number for number in FORWARDED if signal.getsignal(number) is signal.SIG_IGN],
    }
    text = json.dumps(request).encode()
    socket.send_fds(server, [len(text).to_bytes(8, "big")], [0, 1, 2])
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # the twin may have begun before this process can pass them on
    server.sendall(text)

    def forward(number, _):
        with contextlib.suppress(ConnectionError):  # the twin has just ended
            server.send(bytes([number]))

    for number in set(FORWARDED) - set(request["ignored"]):
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    answer = server.recv(8)
    if len(answer) < 8:
        os._exit(1)
    status = int.from_bytes(answer, "big", signed=True)
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)
