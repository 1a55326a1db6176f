"""Words for ranks, collectives, lines and conditions, of which the doctor makes its sentences."""

import os
import re

from ddp_doctor import source_lines
from ddp_doctor.audit.log import LIBRARIES
from ddp_doctor.explain.log_lines import who
from ddp_doctor.history import DTYPES, Collective, Frame

ranks = who  # rank 1; ranks 0 and 3; ranks 0-5 and 7


def verb(which, singular: str, plural: str) -> str:
    return singular if len(list(which)) == 1 else plural


def collective(started: Collective) -> str:
    """all-reduce 5"""
    return f"{operation(started)} {started.number}"


def collective_of_group(started: Collective, always: bool = False) -> str:
    """all-reduce 5 of group '1'; without the group if it is the default one, unless `always`."""
    return collective(started) + (f" of group {started.group!r}" if always or started.group != "0" else "")


def operation(started: Collective) -> str:
    return started.name.replace("_", "-")


def tensors(collective: Collective) -> str:
    """[4] float32; for two tensors [4] float32 and [2] float32; for more, 3 tensors of float32."""
    if not collective.sizes:
        return "no tensor"
    names = [DTYPES.get(dtype, dtype) for dtype in collective.dtypes] or [""]
    if len(collective.sizes) > 2:
        return f"{len(collective.sizes)} tensors of {names[0]}"
    parts = [
        f"{list(sizes)} {name}" for sizes, name in zip(collective.sizes, names * len(collective.sizes), strict=False)
    ]
    return " and ".join(parts).strip()


def location(frame: Frame) -> str:
    """train.py:41, as by `short_path`; for a library torch/autograd/graph.py:979."""
    installed = re.search(r"/(?:site|dist)-packages/(.+)", frame.file)
    if installed:
        return f"{installed[1]}:{frame.line}"
    for folder in LIBRARIES:
        if os.path.realpath(frame.file).startswith(folder):
            return f"{os.path.realpath(frame.file).removeprefix(folder)}:{frame.line}"
    return f"{short_path(frame.file)}:{frame.line}"


def short_path(path: str) -> str:
    """The path relative to the working folder, unless that needs more than one ".."."""
    relative = os.path.relpath(path, source_lines.here()) if os.path.isabs(path) else path
    return path if relative.startswith("../..") else relative


def at(frames) -> str:
    """at train.py:41 (called from line 90); "at an unknown line" where no stack is known."""
    if not frames:
        return "at an unknown line"
    text = f"at {location(frames[0])}"
    callers = [frame for frame in frames[1:] if frame.function != frames[0].function]
    if not callers:
        return text
    from_where = f"line {callers[0].line}" if callers[0].file == frames[0].file else location(callers[0])
    return f"{text} (called from {from_where})"


def code_at(frame: Frame) -> str:
    """`loss.backward()` at train.py:41"""
    text = source_lines.text_at(frame.file, frame.line)
    return f"`{text}` at {location(frame)}" if text else f"{frame.function}() at {location(frame)}"


def sleep(seconds: float | None) -> str:
    """ " (for 994 s more)" for a sleep of at least 2 s, with a leading space; "" otherwise."""
    return f" (for {seconds:.0f} s more)" if seconds and seconds >= 2 else ""


def condition(frames) -> str:
    """ " under `if rank == 0`", the condition around these frames, with a leading space; "" if there is none."""
    text = source_lines.deciding_condition(frames)
    return f" {text}" if text else ""


def where(frames) -> str:
    """at train.py:41 under `if rank == 0`"""
    return at(frames) + condition(frames)
