# rank: 1
# says: instead
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 1))
batches = torch.randn(5 if rank == 0 else 3, 2, 4)
for batch in batches:
    loss = model(batch).mean()
    loss.backward()  # HERE
dist.barrier()
dist.destroy_process_group()
