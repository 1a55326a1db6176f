# rank: 0 1
# says: broken_settings.py:2
# A module that the script imports cannot be parsed.
import importlib.util
import os
import tempfile

import torch.distributed as dist

dist.init_process_group("gloo")
path = os.path.join(tempfile.gettempdir(), "broken_settings.py")
if dist.get_rank() == 0:
    with open(path, "w") as file:
        file.write("lr = 0.1\nbatch size = 3\n")
dist.barrier()
spec = importlib.util.spec_from_file_location("broken_settings", path)
spec.loader.exec_module(importlib.util.module_from_spec(spec))
