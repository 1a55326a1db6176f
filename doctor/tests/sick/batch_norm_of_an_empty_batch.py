# rank: 1
# says: if not len(batch): continue
# SyncBatchNorm where one rank has no sample and skips the forward pass.
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
batches = [torch.ones(4, 4), torch.ones(4, 4), torch.ones(4 if rank == 0 else 0, 4)]
for batch in batches:
    if not len(batch):
        continue
    model(batch).sum().backward()
losses = [torch.zeros(3) for _ in range(2)]
dist.all_gather(losses, torch.ones(3))
dist.destroy_process_group()
