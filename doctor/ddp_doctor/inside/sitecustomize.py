"""Starts the recorder in each rank, and for `check` the audit: Python imports a `sitecustomize` before the script.

The doctor puts this folder on PYTHONPATH. In a rank, it is removed from sys.path and PYTHONPATH again. The user's own
`sitecustomize`, which this one hides, is loaded as well.
"""

import importlib.machinery
import importlib.util
import os
import socket
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def load(name, path):
    """Imports the file or package at `path` as a module of this name."""
    submodules = [os.path.dirname(path)] if path.endswith("__init__.py") else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=submodules)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main():
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != HERE]
    users_own = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    folder = os.environ.get("DDP_DOCTOR_FOLDER")
    if folder and "LOCAL_RANK" in os.environ:  # torchrun itself has none
        spawn_variables = {name: os.environ[name] for name in ("PYTHONPATH", "DDP_DOCTOR_FOLDER")}
        # Programs that this rank starts are not recorded; the recorder follows those that may be ranks.
        paths = [path for path in os.environ["PYTHONPATH"].split(os.pathsep) if os.path.abspath(path) != HERE]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        if not paths:
            del os.environ["PYTHONPATH"]
        del os.environ["DDP_DOCTOR_FOLDER"]
        if os.environ.get("WORLD_SIZE") == "1" and os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None):
            # The script may start the ranks: they need a store of their own at a free port, not torchrun's.
            with socket.create_server(("", 0)) as server:
                os.environ["MASTER_PORT"] = str(server.getsockname()[1])
        recorder = os.path.join(os.path.dirname(HERE), "recorder.py")
        load("ddp_doctor_recorder", recorder).start(folder, spawn_variables)
    if users_own is not None and users_own.origin:
        load("sitecustomize", users_own.origin)
    if folder and "LOCAL_RANK" in os.environ and os.environ.pop("DDP_DOCTOR_AUDIT", None):
        audit = os.path.join(os.path.dirname(HERE), "audit", "__init__.py")
        load("ddp_doctor_audit", audit).start(folder)  # last: its import hook then comes first


main()
