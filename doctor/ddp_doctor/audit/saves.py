"""Watches torch.save and torch.load, and the numbers that the script reads from tensors."""

import os
import pickle
import re

import torch

from .log import caller, where
from .variables import names_of


def watch_saves(log):
    def before_save(args, kwargs):
        file = args[1] if len(args) > 1 else kwargs.get("f")
        path, frames, is_path = _path_of(file), where(), isinstance(file, str | os.PathLike)
        if path is None:
            return None
        log.snapshot.record_write(path)
        names = names_of(args[0] if args else kwargs.get("obj"), log.replicas())

        def after(_):
            log.snapshot.record_save(path)
            load_error = _load_error(path) if is_path else None
            log.event("save", path=path, frames=frames, load_error=load_error, names=names)

        return after

    def before_load(args, kwargs):
        if (path := _path_of(args[0] if args else kwargs.get("f"))) is not None:
            log.event("load", path=path, frames=where())

    def before_item(args, kwargs):
        if args[0].numel() != 1 or caller("torch/_tensor.py") != "own":
            return None
        gradients = torch.is_grad_enabled()
        return lambda value: log.event("item", value=float(value), gradients=gradients)

    torch.save = torch.serialization.save = log.watched(torch.save, before_save)
    torch.load = torch.serialization.load = log.watched(torch.load, before_load)
    torch.Tensor.item = log.watched(torch.Tensor.item, before_item)
    torch.Tensor.__float__ = log.watched(torch.Tensor.__float__, before_item)


def _path_of(file):
    """The absolute path of a path or an open file; None where it has none."""
    name = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
    return os.path.realpath(os.fspath(name)) if isinstance(name, str | os.PathLike) else None


def _load_error(path):
    """Why torch.load with its default, weights_only=True, refuses the file; "" if not, None if it is damaged."""
    try:
        torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        name = re.search(r"(?:GLOBAL|global) (\S+)", str(error))
        return name[1] if name else "what it holds"
    except Exception:  # such as /dev/null, or a file that another rank writes meanwhile: `one_writer` reports that
        return None
    return ""
