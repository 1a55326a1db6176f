# rank: 1
# says: never came to monitored_barrier
import datetime
import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(4))
if rank == 1:
    threading.Event().wait()
dist.monitored_barrier(timeout=datetime.timedelta(seconds=2))  # HERE
dist.destroy_process_group()
