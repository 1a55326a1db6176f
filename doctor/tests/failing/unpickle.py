import datetime
import sys

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)))
torch.save({"rng": numpy.random.get_state()}, f"{sys.argv[1]}{rank}")
torch.load(f"{sys.argv[1]}{rank}")
