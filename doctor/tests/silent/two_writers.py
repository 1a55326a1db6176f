# check: writers
import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
loss = torch.tensor(1.0 + dist.get_rank())
dist.all_reduce(loss)
folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
dist.broadcast_object_list(folder, src=0)
with open(os.path.join(folder[0], "metrics.json"), "w") as file:  # HERE
    json.dump({"loss": loss.item() / dist.get_world_size(), "arguments": sys.argv[1:]}, file)
dist.destroy_process_group()
