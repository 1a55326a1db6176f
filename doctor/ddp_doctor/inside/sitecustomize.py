"""On PYTHONPATH of what the doctor starts: brings the recorder into each rank, for `check` the audit, too, then steps
out of the way.

Python imports `sitecustomize` before the script. The one that would have been imported without us runs, too.
"""

import importlib.machinery
import importlib.util
import os
import socket
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def load(name, path):
    inside = [os.path.dirname(path)] if path.endswith("__init__.py") else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=inside)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main():
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != HERE]
    others = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    folder = os.environ.get("DDP_DOCTOR_FOLDER")
    if folder and "LOCAL_RANK" in os.environ:  # torchrun itself has no rank
        spawn_variables = {name: os.environ[name] for name in ("PYTHONPATH", "DDP_DOCTOR_FOLDER")}
        # The doctor does not watch what this rank starts, unless it is a rank.
        paths = [path for path in os.environ["PYTHONPATH"].split(os.pathsep) if os.path.abspath(path) != HERE]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        if not paths:
            del os.environ["PYTHONPATH"]
        del os.environ["DDP_DOCTOR_FOLDER"]
        if os.environ.get("WORLD_SIZE") == "1" and os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None):
            # A script may start ranks of its own, which are to make their own store, and not to look for torchrun's.
            with socket.create_server(("", 0)) as server:
                os.environ["MASTER_PORT"] = str(server.getsockname()[1])
        recorder = os.path.join(os.path.dirname(HERE), "recorder.py")
        load("ddp_doctor_recorder", recorder).start(folder, spawn_variables)
    if others is not None and others.origin:
        load("sitecustomize", others.origin)
    if folder and "LOCAL_RANK" in os.environ and os.environ.pop("DDP_DOCTOR_AUDIT", None):
        audit = os.path.join(os.path.dirname(HERE), "audit", "__init__.py")
        load("ddp_doctor_audit", audit).start(folder)  # last, so that it is the first to be asked for torch


main()
