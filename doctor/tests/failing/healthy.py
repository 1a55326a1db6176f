import datetime

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)))
for step in range(4):
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    print(f"step {step} loss {loss.item():.3f} error 0.1", flush=True)
del model, loss
dist.destroy_process_group()
