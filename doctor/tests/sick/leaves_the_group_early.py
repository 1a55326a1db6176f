# rank: 1
# says: had called destroy_process_group
# Rank 1 thinks that it has finished, and destroys the group while rank 0 still adds up.
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for _step in range(3):
    dist.all_reduce(torch.ones(5))
if dist.get_rank() == 1:
    dist.destroy_process_group()
    time.sleep(30)
else:
    dist.all_reduce(torch.ones(5))  # HERE
    dist.destroy_process_group()
