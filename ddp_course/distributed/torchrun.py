"""Messages from a rank to the torchrun that started it: the reason of a failure, and a request not to restart."""

import contextlib
import json
import os
import re
import signal
import time

import psutil

from ddp_course.base.errors import in_one_line
from ddp_course.distributed.rendezvous import whole_number


def put_into_report(sentence: str) -> None:
    """Write `sentence`, instead of a traceback, into the report that torchrun prints when a rank has failed.

    The file has the format of torch's own error handler. Nothing happens without torchrun.
    """
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        sentence = in_one_line(sentence)
        extra = {"py_callstack": sentence, "timestamp": str(int(time.time()))}
        with contextlib.suppress(OSError), open(path, "w") as file:  # the caller prints the sentence as well
            json.dump({"message": {"message": sentence, "extraInfo": extra}}, file)


def node() -> str:
    """The number of the torchrun that started this rank: one per machine. Empty without torchrun."""
    return os.environ.get("GROUP_RANK", "")


def would_restart() -> bool:
    """Whether torchrun would restart its ranks if one of them failed: --max-restarts."""
    restarts = whole_number(os.environ.get("TORCHELASTIC_RESTART_COUNT", ""))
    most = whole_number(os.environ.get("TORCHELASTIC_MAX_RESTARTS", ""))
    return restarts is not None and most is not None and restarts < most


def may_regroup(launcher: int) -> bool:
    """Whether nodes may join the job, --nnodes=MIN:MAX: torchrun then ends its ranks, to start a larger group."""
    try:
        words = [*psutil.Process(launcher).cmdline(), f"--nnodes={os.environ.get('PET_NNODES', '')}"]
    except psutil.Error:
        return False
    sizes = re.findall(r"--nnodes[= ](\d+):(\d+)", " ".join(words))
    return any(int(least) < int(most) for least, most in sizes)


def stop(launcher: int) -> None:
    """Send SIGTERM to torchrun, the process `launcher`: it ends its ranks, waits for them, and does not restart them.

    torchrun makes each rank the leader of a session. If this rank is no leader, another process started it, which
    torchrun started and SIGTERM would not stop: then no signal is sent.
    """
    if os.getsid(0) == os.getpid() and os.getppid() == launcher:
        with contextlib.suppress(OSError):
            os.kill(launcher, signal.SIGTERM)
