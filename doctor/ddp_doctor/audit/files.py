"""Watches files that are written, and the numbers that are printed."""

import builtins
import os
import re
import sys

from .kept import Kept
from .log import kind_of, where

NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?:e[+-]?\d+)?(?![\w.])")
PYCACHE = "__pycache__"  # what any rank compiles first goes there, under another name, and is renamed
WRITES = ("torch", "numpy", "safetensors", "pandas")  # packages that write a file where the script says so


def watch_files(log):
    """Through Python's audit hooks, which see every open(), os.rename and os.mkdir, and print."""
    log.kept = Kept(log)
    looks = {"open": _opened, "os.rename": _renamed, "os.mkdir": _made, "os.symlink": _linked}

    def hook(event, args):
        if event in looks:
            log.quietly(looks[event], log, *args)

    def prints(args, kwargs):
        if kwargs.get("file") in (None, sys.stdout):
            text = " ".join(str(arg) for arg in args if isinstance(arg, str | int | float))
            if numbers := NUMBER.findall(text):
                log.event("print", frames=where(), numbers=numbers[:20])

    sys.addaudithook(hook)
    builtins.print = log.watched(builtins.print, prints)


def _opened(log, path, mode, flags):
    if isinstance(path, int) or path is None:
        return
    if mode is None:
        changes, anew = bool(flags & (os.O_WRONLY | os.O_RDWR)), not flags & os.O_APPEND
    else:
        changes, anew = bool(set(mode) & {*"wxa+"}), bool(set(mode) & {*"wx"})
    if not changes:
        return
    path = os.path.abspath(os.fsdecode(path))
    if os.path.isdir(path):  # opened for a file without a name, as by tempfile.TemporaryFile
        return
    if path.startswith(("/dev/", "/proc/", "/sys/")) or path.endswith((".pyc", ".lock")) or PYCACHE in path:
        return
    asked = _asked_for_by_the_script()
    log.kept.writes(os.path.realpath(path), asked)
    if asked and anew:
        log.event("open", path=os.path.realpath(path), frames=where())


def _asked_for_by_the_script():
    """Did the user's own code open it, by itself or through Python's library or a package that writes arrays?"""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        kind = kind_of(file)
        if kind == "own":
            return True
        if "importlib" in file or kind == "package" and not any(f"-packages/{name}/" in file for name in WRITES):
            return False
        frame = frame.f_back
    return False


def _renamed(log, *paths_and_folders):
    paths, frames = paths_and_folders[:2], where()
    if all(isinstance(path, str | bytes | os.PathLike) for path in paths):
        source, target = (os.path.realpath(os.fsdecode(path)) for path in paths)
        if PYCACHE in target:
            return
        log.kept.renames(source, target)
        if frames:
            log.event("rename", source=source, target=target, frames=frames)


def _made(log, path, *_):
    log.kept.folders.add(os.path.realpath(os.fsdecode(path)))


def _linked(log, _source, target, *_):
    folder, name = os.path.split(os.path.abspath(os.fsdecode(target)))
    log.kept.writes(os.path.join(os.path.realpath(folder), name), _asked_for_by_the_script())
