import datetime
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
rank = dist.get_rank()
for step in range(5):
    sys.stderr.write(f"\r\x1b[32m{20 * step}%|\x1b[0m#####| {step}/5")
    dist.all_reduce(torch.ones(4))
    if rank == 1 and step == 3:
        raise IndexError("index 50257 is out of range")
