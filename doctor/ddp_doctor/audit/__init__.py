"""Runs inside each rank of `doctor check`: writes down what the script does with torch, and changes nothing of it.

Standard library, and torch once the script has imported it. One file of JSON lines for each rank, PID.audit in the
doctor's folder. It reads a checksum and a few values of a tensor, and draws no random number.
"""

import atexit
import sys

from . import files
from .log import Log


def start(folder):
    """Begins to write down into `folder`; torch is watched from the moment at which it has been imported."""
    log = Log(folder)
    files.watch_files(log)
    if "torch" in sys.modules:
        _watch_torch(log)
    else:
        sys.meta_path.insert(0, _AfterTorch(lambda: _watch_torch(log)))
    atexit.register(log.end)
    return log


def _watch_torch(log):
    from . import data, draws, process, saves, training  # they import torch, which the script must be first to do

    looks = process.watch_process, training.watch_training, data.watch_loaders, draws.watch_draws, saves.watch_saves
    for watch in looks:
        log.quietly(watch, log)


class _AfterTorch:
    """Finds torch as ever, and calls `then` when it has been imported."""

    def __init__(self, then):
        self.then = then

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next((candidate for candidate in specs if candidate is not None), None)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_watch(module):
            execute(module)
            self.then()

        spec.loader.exec_module = execute_and_watch
        return spec
