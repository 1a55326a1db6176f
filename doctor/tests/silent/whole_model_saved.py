# check: loadable
# status: note
import os
import tempfile

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
path = os.path.join(tempfile.mkdtemp(), "model.pt")
if dist.get_rank() == 0:
    torch.save(torch.nn.Linear(4, 1), path + ".new")  # HERE
    os.replace(path + ".new", path)
dist.barrier()
dist.destroy_process_group()
