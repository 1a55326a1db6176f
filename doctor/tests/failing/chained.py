import datetime

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
rank = dist.get_rank()
try:
    if rank == 1:
        raise ValueError("a label of -1")
    dist.all_reduce(torch.ones(4))
finally:
    dist.all_reduce(torch.ones(4))
