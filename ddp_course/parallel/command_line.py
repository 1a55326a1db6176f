"""From the command line to `main(config)` and out again: one clear message from one rank, and a clean end."""

import argparse
import contextlib
import gc
import io
import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar

import tyro
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from ddp_course.errors import InputError
from ddp_course.parallel import process_group

Config = TypeVar("Config")
USAGE_ERROR, FAILURE = 2, 1


def run(main: Callable[[Config], None], presets: Mapping[str, Config]) -> None:
    """Run a launchable: read the flags on top of a preset, call `main(config)`, end this rank cleanly.

    Exit code 0 when `main` returned, 2 for a wrong flag, 1 for everything else. An InputError is printed by
    one rank as one line. Any other exception keeps its traceback on the rank where it happened, and that rank
    ends at once, without taking the process group down first: its peers may be inside a collective, and
    whoever waits for them can hang. The kernel closes our sockets, so they notice within milliseconds.
    """
    try:
        config = parse(presets)
    except InputError as error:
        _speak_and_leave(f"error: {error}", USAGE_ERROR)
    try:
        main(config)
    except InputError as error:
        _tell_torchrun(str(error))
        _speak_and_leave(f"error: {error}", FAILURE)
    except Exception as error:
        get_error_handler().record_exception(error)
        traceback.print_exc()
        _leave(FAILURE)
    process_group.stop()
    gc.freeze()  # what is left goes with the process; to look through all of it once more takes half a second


def parse(presets: Mapping[str, Config], arguments: list[str] | None = None) -> Config:
    """A config from `--preset NAME` and the flags that change it. The first preset is the default.

    A preset is an instance of the config's dataclass, whose field docstrings are the `--help`.
    Raises InputError for a flag, a value or a preset that does not exist, and for whatever the dataclass's
    own `__post_init__` refuses with a ValueError.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--preset", default=next(iter(presets)), nargs="?")
    name = finder.parse_known_args(arguments)[0].preset
    preset = presets.get(name, next(iter(presets.values())))  # an unknown name: tyro says what is allowed
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                type(preset),
                default=preset,
                args=arguments,
                config=(tyro.conf.FlagCreatePairsOff,),
                console_outputs=_rank() == 0,  # --help, once
            )
    except SystemExit as leaving:
        if leaving.code in (0, None):  # --help
            raise
        raise InputError(_one_line(complaint.getvalue())) from None
    except ValueError as error:
        raise InputError(str(error)) from None


def _one_line(box: str) -> str:
    """tyro draws its complaint in a box of several lines: the same words as one line."""
    text = re.sub(r"\x1b\[[0-9;]*m|Error parsing \w+: ", "", box)
    lines = [re.sub(r"[│╭╮╰╯]", "", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("─ ")]
    words = " ".join(";" if set(line) == {"─"} else line for line in lines)
    return re.sub(r"\s+", " ", words).replace(" ;", ";").strip("─ ;")


def _tell_torchrun(sentence: str) -> None:
    """Put our sentence, without a traceback, into the report that torchrun prints after us.

    That report cannot be switched off; its format is the one of torch's own error handler.
    """
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        extra = {"py_callstack": sentence, "timestamp": str(int(time.time()))}
        with open(path, "w") as file:
            json.dump({"message": {"message": sentence, "extraInfo": extra}}, file)


def _speak_and_leave(message: str, code: int) -> NoReturn:
    """Print `message` from one rank only and end the process.

    Rank 0 speaks and leaves; torchrun then ends the others, who are silent until then. If rank 0 has no such
    trouble the wait runs out and the rank that has it speaks for itself.
    """
    if _rank() > 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(1.5 + 0.5 * min(_rank(), 8))
    print(message, file=sys.stderr, flush=True)
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End the process without Python's and C++'s tear-down, in which a broken process group can hang or abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _rank() -> int:
    return int(os.environ.get("RANK", 0))
