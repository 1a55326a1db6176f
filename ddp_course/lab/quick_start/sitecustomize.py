"""Python imports a module of this name by itself as it starts: fewer garbage collections, and none at the end.

To load torch is to make a million objects, all of which stay. The collector goes through them again and again while
they are made, and once more when the process ends: a third of what a rank computes before and after its own work.
"""

import atexit
import gc
import importlib.util
import os
import sys
from importlib.machinery import PathFinder

gc.set_threshold(50_000)  # new objects before the next collection; Python's own value is 700 or 2000
atexit.register(gc.freeze)  # the first that is registered runs last: what is left goes with the process

# The environment may have a sitecustomize of its own, which this one hides.
behind = PathFinder.find_spec("sitecustomize", [folder for folder in sys.path if folder != os.path.dirname(__file__)])
if behind:
    behind.loader.exec_module(importlib.util.module_from_spec(behind))
