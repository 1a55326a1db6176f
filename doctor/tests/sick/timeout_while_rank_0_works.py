# rank: 0
# says: the timeout of 4 s ran out
# Rank 0 evaluates for longer than the group's timeout, and comes to the barrier when the others have given up.
import time
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=4))
for _ in range(3):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 0:
    end = time.monotonic() + 8
    while time.monotonic() < end:
        torch.randn(200, 200) @ torch.randn(200, 200)
dist.barrier()  # HERE
dist.destroy_process_group()
