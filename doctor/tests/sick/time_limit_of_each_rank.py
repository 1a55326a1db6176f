# rank: 1
# says: time.monotonic() > limit
# Each rank looks at its own clock, and one leaves the loop a step before the other.
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 2))
limit = time.monotonic() + 2 - rank
while True:
    model(torch.ones(2, 4)).sum().backward()  # HERE
    time.sleep(0.2)
    if time.monotonic() > limit:
        break
dist.barrier()
dist.destroy_process_group()
