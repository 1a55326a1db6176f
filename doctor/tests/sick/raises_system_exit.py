# rank: 1
# says: exit code 4
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(6):
    dist.all_reduce(torch.ones(4))  # HERE
    if dist.get_rank() == 1 and step == 3:
        raise SystemExit(4)
dist.destroy_process_group()
