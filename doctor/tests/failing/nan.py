import datetime

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)))
if rank == 1:
    with torch.autograd.detect_anomaly():
        x = torch.zeros(2, 4, requires_grad=True)
        (model(x).sum() + (x.sqrt() * 0).sum()).backward()
else:
    model(torch.ones(2, 4)).sum().backward()
