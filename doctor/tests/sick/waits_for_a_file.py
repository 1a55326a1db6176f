# rank: 1
# says: never joined barrier
import os
import time

import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 1:
    while not os.path.exists("checkpoint_that_nobody_writes.pt"):
        time.sleep(0.1)
dist.barrier()  # HERE
dist.destroy_process_group()
