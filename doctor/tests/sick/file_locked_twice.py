# rank: 1
# says: never joined all-gather
import fcntl
import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 1:
    first, second = (os.open(__file__, os.O_RDONLY) for _ in range(2))
    fcntl.flock(first, fcntl.LOCK_EX)
    fcntl.flock(second, fcntl.LOCK_EX)
gathered = [torch.empty(4), torch.empty(4)]
dist.all_gather(gathered, torch.ones(4))  # HERE
dist.destroy_process_group()
