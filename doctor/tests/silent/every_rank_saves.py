# check: writers
import os
import tempfile

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
dist.broadcast_object_list(folder, src=0)
model = torch.nn.Linear(4, 1)
path = os.path.join(folder[0], "model.pt")
torch.save(model.state_dict(), path + f".{dist.get_rank()}")
os.replace(path + f".{dist.get_rank()}", path)  # HERE
dist.destroy_process_group()
