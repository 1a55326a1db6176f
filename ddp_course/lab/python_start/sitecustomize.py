"""Python imports a module of this name by itself as it starts: fewer garbage collections, and a clean end.

To load torch is to make a million objects, all of which stay. The collector goes through them again and again while
they are made, and once more when the process ends: a third of what a rank computes before and after its own work.
"""

import atexit
import gc
import importlib.util
import os
import sys
from importlib.machinery import PathFinder


def let_go_of_the_group():
    """Takes a process group that the script has left out of the default arguments in torch.distributed.nn.

    DDP and optimizers load that module, and if there is a group by then, its functions keep it. The group's threads
    run on after destroy_process_group(), and can abort Python as it ends (exit code -6), once in some hundred runs.
    """
    module = sys.modules.get("torch.distributed.nn.functional")
    if module is None or module.dist.is_initialized():
        return
    for function in vars(module).values():
        defaults = getattr(function, "__defaults__", None) or ()
        if any(isinstance(value, module.dist.ProcessGroup) for value in defaults):
            function.__defaults__ = (None,) * len(defaults)  # nobody calls it any more


gc.set_threshold(50_000)  # new objects before the next collection; Python's own value is 700 or 2000
atexit.register(gc.freeze)  # the first that is registered runs last: what is left goes with the process
atexit.register(let_go_of_the_group)

# The environment may have a sitecustomize of its own, which this one hides.
behind = PathFinder.find_spec("sitecustomize", [folder for folder in sys.path if folder != os.path.dirname(__file__)])
if behind:
    behind.loader.exec_module(importlib.util.module_from_spec(behind))
