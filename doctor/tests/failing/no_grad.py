import datetime

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
rank = dist.get_rank()
net = torch.nn.Linear(4, 4).requires_grad_(False)
DistributedDataParallel(net)
