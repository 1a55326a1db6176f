"""Python imports this at the start of every process of the tests, which have its folder on PYTHONPATH.

It saves garbage collections that free nothing: a rank computes for four to five seconds to import torch and to end,
and a quarter of that is garbage collection. In between, the collector runs as usual.

With THREADS_AT_EXIT, as in test_notebooks.py, it also records threads of gloo that outlive their group. Such a thread
aborts Python at its end (exit code -6) only once in some hundred runs, but the record shows it in every run.
"""

import atexit
import gc
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path


class NoCollectionsWhileTorchLoads:
    """Finds modules as Python does, and switches the collector off while a module of torch is executed."""

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


def skip_the_last_collection():
    """Not where triton is loaded, whose version 3.9 would print a warning for each of its objects."""
    (gc.unfreeze if "triton" in sys.modules else gc.freeze)()


def note_threads_of_gloo():
    """Adds a line to the file named by THREADS_AT_EXIT if threads of gloo are left.

    Not in a process that still has its group, as a script that fails on purpose; nor in a rank that the doctor watches,
    where a healthy group sometimes outlives its end; nor with DTensor, whose caches keep the groups of its meshes (160
    such jobs all ended cleanly); nor in a rank that dist.breakpoint stopped, whose debugger keeps a frame of torch with
    the groups from Python 3.13 on.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is None or dist.is_initialized() or "ddp_doctor_recorder" in sys.modules:
        return
    names = []
    for thread in Path("/proc/self/task").iterdir():
        try:
            names.append((thread / "comm").read_text().strip())
        except OSError:
            continue  # the thread has ended
    left = sorted(name for name in names if "gloo" in name)
    gc.unfreeze()  # a trainer has frozen its objects
    if left and not any(type(kept).__name__ in {"DTensorSpec", "_DistributedPdb"} for kept in gc.get_objects()):
        with open(os.environ["THREADS_AT_EXIT"], "a") as file:
            file.write(f"{sys.argv[0]}, rank {os.environ.get('RANK')}: {', '.join(left)}\n")


if "WARM_SERVER" in os.environ:
    import warm_client

    warm_client.hand_over(os.environ["WARM_SERVER"])
sys.meta_path.insert(0, NoCollectionsWhileTorchLoads())
atexit.register(skip_the_last_collection)  # registered first, so it runs last
if sys.platform == "linux" and "THREADS_AT_EXIT" in os.environ:
    atexit.register(note_threads_of_gloo)
