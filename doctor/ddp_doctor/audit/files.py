"""Watches files that are written, and the numbers that are printed."""

import builtins
import os
import re
import sys
from traceback import walk_stack

from .log import kind_of, where
from .snapshot import Snapshot

NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?:e[+-]?\d+)?(?![\w.])")
PYCACHE = "__pycache__"  # not compared: only the first rank that imports a module writes its compiled file
WRITING_PACKAGES = ("numpy", "safetensors", "pandas")  # beside torch; they write a file where the script says so


def watch_files(log):
    """Adds an audit hook of Python, which sees open(), os.rename, os.mkdir and os.symlink, and replaces print."""
    log.snapshot = Snapshot(log)
    recorders = {"open": _record_open, "os.rename": _record_rename, "os.symlink": _record_symlink}
    recorders["os.mkdir"] = lambda log, path, *_: log.snapshot.folders.add(os.path.realpath(os.fsdecode(path)))

    def hook(event, args):
        if event in recorders:
            log.quietly(recorders[event], log, *args)

    def record_print(args, kwargs):
        if kwargs.get("file") in (None, sys.stdout):
            text = " ".join(str(arg) for arg in args if isinstance(arg, str | int | float))
            if numbers := NUMBER.findall(text):
                log.event("print", frames=where(), numbers=numbers[:20])

    sys.addaudithook(hook)
    builtins.print = log.watched(builtins.print, record_print)


def _record_open(log, path, mode, flags):
    if isinstance(path, int) or path is None:
        return
    if mode is None:
        writes, replaces = bool(flags & (os.O_WRONLY | os.O_RDWR)), not flags & os.O_APPEND
    else:
        writes, replaces = bool(set(mode) & {*"wxa+"}), bool(set(mode) & {*"wx"})
    if not writes:
        return
    path = os.path.abspath(os.fsdecode(path))
    if os.path.isdir(path):  # opened for a file without a name, as by tempfile.TemporaryFile
        return
    if path.startswith(("/dev/", "/proc/", "/sys/")) or path.endswith((".pyc", ".lock")) or PYCACHE in path:
        return
    by_script = _is_called_by_script()
    log.snapshot.record_write(os.path.realpath(path), by_script)
    if by_script and replaces:
        log.event("open", path=os.path.realpath(path), frames=where())


def _is_called_by_script():
    """Whether the user's own code opens the file: itself, or through torch, Python's library or WRITING_PACKAGES."""
    for frame, _ in walk_stack(sys._getframe(1)):
        file = frame.f_code.co_filename
        kind = kind_of(file)
        if kind == "own":
            return True
        is_other_package = kind == "package" and not any(f"-packages/{name}/" in file for name in WRITING_PACKAGES)
        if "importlib" in file or is_other_package:
            return False
    return False


def _record_rename(log, *paths_and_folders):
    paths, frames = paths_and_folders[:2], where()
    if all(isinstance(path, str | bytes | os.PathLike) for path in paths):
        source, target = (os.path.realpath(os.fsdecode(path)) for path in paths)
        if PYCACHE in target:
            return
        log.snapshot.record_rename(source, target)
        if frames:
            log.event("rename", source=source, path=target, frames=frames)


def _record_symlink(log, _source, target, *_):
    folder, name = os.path.split(os.path.abspath(os.fsdecode(target)))
    log.snapshot.record_write(os.path.join(os.path.realpath(folder), name), _is_called_by_script())
