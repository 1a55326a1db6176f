# rank: 1
# says: different models
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
layers = [torch.nn.Linear(4, 4) for _ in range(2 + rank)]
model = DistributedDataParallel(torch.nn.Sequential(*layers))  # HERE
model(torch.ones(2, 4)).sum().backward()
dist.destroy_process_group()
