# rank: 1
# says: never answered new-group
import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(4))
if rank == 0:
    group = dist.new_group([0, 1])  # HERE
else:
    threading.Event().wait()
dist.destroy_process_group()
