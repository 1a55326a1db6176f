# rank: 1
# says: never joined all-reduce
import datetime
import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3))
for step in range(3):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(4))  # HERE
else:
    threading.Event().wait()
