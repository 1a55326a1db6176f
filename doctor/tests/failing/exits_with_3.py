import datetime
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
rank = dist.get_rank()
dist.all_reduce(torch.ones(4))
if rank == 1:
    print("bad config", flush=True)
    os._exit(3)
dist.all_reduce(torch.ones(4))
