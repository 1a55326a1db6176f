import datetime
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)))
path = f"{sys.argv[1]}{rank}.pt"
torch.save(model.state_dict(), path)
os.truncate(path, os.path.getsize(path) // 2)
torch.load(path)
