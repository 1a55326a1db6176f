"""What a rank has to tell the torchrun that started it: why it ends, and that it should not be started again."""

import contextlib
import json
import os
import re
import signal
import time

import psutil

from ddp_course.base.errors import in_one_line


def put_into_report(sentence: str) -> None:
    """Put our sentence, without a traceback, into the report that torchrun prints when a rank has failed.

    That report cannot be switched off; its format is the one of torch's own error handler.
    """
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        sentence = in_one_line(sentence)
        extra = {"py_callstack": sentence, "timestamp": str(int(time.time()))}
        with contextlib.suppress(OSError), open(path, "w") as file:  # our own line is said in any case
            json.dump({"message": {"message": sentence, "extraInfo": extra}}, file)


def node() -> str:
    """Which torchrun of the job started this rank: there is one per machine. Empty without torchrun."""
    return os.environ.get("GROUP_RANK", "")


def would_restart() -> bool:
    """Whether torchrun starts its ranks anew when one ends with another exit code than 0: --max-restarts."""
    numbers = [os.environ.get(f"TORCHELASTIC_{name}", "") for name in ("RESTART_COUNT", "MAX_RESTARTS")]
    if not all(text.isascii() and text.isdigit() and len(text) < 10 for text in numbers):
        return False
    return int(numbers[0]) < int(numbers[1])


def may_regroup(launcher: int) -> bool:
    """Whether nodes may join the job, --nnodes=MIN:MAX: torchrun then ends its ranks, to start a larger group."""
    try:
        words = [*psutil.Process(launcher).cmdline(), f"--nnodes={os.environ.get('PET_NNODES', '')}"]
    except psutil.Error:
        return False
    sizes = re.findall(r"--nnodes[= ](\d+):(\d+)", " ".join(words))
    return any(int(least) < int(most) for least, most in sizes)


def stop(launcher: int) -> None:
    """SIGTERM to torchrun, the process `launcher`: it ends its ranks, waits for them, and starts none anew.

    torchrun makes each rank the leader of a session. A rank that is none was started by something in between, which
    SIGTERM would not stop: then nothing is sent.
    """
    if os.getsid(0) == os.getpid() and os.getppid() == launcher:
        with contextlib.suppress(OSError):
            os.kill(launcher, signal.SIGTERM)
