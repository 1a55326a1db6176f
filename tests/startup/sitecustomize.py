"""On PYTHONPATH of every process that the tests start: less computing at its start and end, and a look at its threads.

To load torch and to take it apart again, a rank computes for four to five seconds, a quarter of them for garbage
collections that find nothing. Between the two it collects as it does for a reader.

A thread of gloo that outlives its group can abort Python as it ends (exit code -6), once in some hundred runs. With
THREADS_AT_EXIT, as in test_notebooks.py, it is seen in every run.
"""

import atexit
import gc
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path


class NoCollectionsWhileTorchLoads:
    """A finder that finds what Python would, and keeps the collector still until a module of torch is there."""

    def find_spec(self, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target) if name.partition(".")[0] == "torch" else None
        if spec and spec.loader:
            load = spec.loader.exec_module

            def exec_module(module):
                enabled = gc.isenabled()
                gc.disable()
                try:
                    load(module)
                finally:
                    if enabled:
                        gc.enable()

            spec.loader.exec_module = exec_module
        return spec


def leave_what_is_left():
    """Does not collect at the end, except where triton is loaded: 3.9 prints a warning for each object of its own."""
    (gc.unfreeze if "triton" in sys.modules else gc.freeze)()


def note_threads_of_gloo():
    """Adds a line to the file named by THREADS_AT_EXIT. A script that fails on purpose still has its group.

    The rule is for plain scripts: in a rank that the doctor watches, now and then a healthy group has outlived its end.
    Nor is it for DTensor, whose caches keep the groups of its meshes: of 160 such jobs, all ended cleanly. Nor for a
    rank that dist.breakpoint stopped: from Python 3.13 on its debugger keeps torch's frame, where a loop names them.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is None or dist.is_initialized() or "ddp_doctor_recorder" in sys.modules:
        return
    names = []
    for thread in Path("/proc/self/task").iterdir():
        try:
            names.append((thread / "comm").read_text().strip())
        except OSError:
            continue  # it ended meanwhile
    left = sorted(name for name in names if "gloo" in name)
    gc.unfreeze()  # a trainer has frozen what is left
    if left and not any(type(kept).__name__ in {"DTensorSpec", "_DistributedPdb"} for kept in gc.get_objects()):
        with open(os.environ["THREADS_AT_EXIT"], "a") as file:
            file.write(f"{sys.argv[0]}, rank {os.environ.get('RANK')}: {', '.join(left)}\n")


if "WARM_SERVER" in os.environ:
    import warm_client

    warm_client.hand_over(os.environ["WARM_SERVER"])
sys.meta_path.insert(0, NoCollectionsWhileTorchLoads())
atexit.register(leave_what_is_left)  # what is registered first runs last
if sys.platform == "linux" and "THREADS_AT_EXIT" in os.environ:
    atexit.register(note_threads_of_gloo)
