"""Runs inside each rank of `doctor check`: records what the script does with torch, and changes nothing in it.

Each rank writes JSON lines to a file of its own, PID.audit in the doctor's folder. The audit imports the standard
library, and torch only after the script has. Of tensors it records checksums and a few values; it draws no random
number.
"""

import atexit
import sys

from . import files
from .log import Log


def start(folder):
    """Starts to record into `folder` and returns the Log. Torch is watched as soon as the script has imported it."""
    log = Log(folder)
    files.watch_files(log)
    if "torch" in sys.modules:
        _watch_torch(log)
    else:
        sys.meta_path.insert(0, _TorchImportHook(lambda: _watch_torch(log)))
    atexit.register(log.end)
    return log


def _watch_torch(log):
    from . import data, draws, process, saves, training  # they import torch, which the script must be first to do

    watchers = process.watch_process, training.watch_training, data.watch_loaders, draws.watch_draws, saves.watch_saves
    for watch in watchers:
        log.quietly(watch, log)


class _TorchImportHook:
    """A finder in sys.meta_path: torch is found by the other finders, and `after_import` called once it is imported."""

    def __init__(self, after_import):
        self.after_import = after_import

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
            self.after_import()

        spec.loader.exec_module = execute_and_watch
        return spec
