"""Watches checkpoints that are saved and loaded, and the numbers that are read from tensors."""

import os
import pickle
import re

import torch

from .log import caller, where
from .variables import names_of


def watch_saves(log):
    def saves(args, kwargs):
        file = args[1] if len(args) > 1 else kwargs.get("f")
        path, frames, direct = _path_of(file), where(), isinstance(file, str | os.PathLike)
        if path is None:
            return None
        log.kept.writes(path)
        names = names_of(args[0] if args else kwargs.get("obj"), log.replicas())

        def then(_):
            log.kept.saves(path)
            refused = _loads(path) if direct else None
            log.event("save", path=path, frames=frames, loads=refused, names=names)

        return then

    def loads(args, kwargs):
        if (path := _path_of(args[0] if args else kwargs.get("f"))) is not None:
            log.event("load", path=path, frames=where())

    def item(args, kwargs):
        if args[0].numel() != 1 or caller("torch/_tensor.py") != "own":
            return None
        gradients = torch.is_grad_enabled()
        return lambda value: log.event("item", value=float(value), gradients=gradients)

    torch.save = torch.serialization.save = log.watched(torch.save, saves)
    torch.load = torch.serialization.load = log.watched(torch.load, loads)
    torch.Tensor.item = log.watched(torch.Tensor.item, item)
    torch.Tensor.__float__ = log.watched(torch.Tensor.__float__, item)


def _path_of(file):
    """The absolute path of a path or an open file; None where it has none."""
    name = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
    return os.path.realpath(os.fspath(name)) if isinstance(name, str | os.PathLike) else None


def _loads(path):
    """True, or why `torch.load` with its default, weights_only=True, refuses what was saved."""
    try:
        torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        name = re.search(r"(?:GLOBAL|global) (\S+)", str(error))
        return name[1] if name else "what it holds"
    except Exception as error:
        return repr(error)[:200]
    return True
