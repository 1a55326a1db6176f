# rank: 1
# says: except RuntimeError
# Rank 1 catches an out-of-memory error of its own and goes on with the next batch.
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 2))


def forward(step):
    if rank == 1 and step == 2:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return model(torch.ones(2, 4)).sum()


for step in range(5):
    time.sleep(0.5)  # reads a batch
    try:
        loss = forward(step)
    except RuntimeError as error:
        print("skipping", error)
        continue
    loss.backward()  # HERE
total = torch.ones(1)
dist.all_reduce(total)
dist.destroy_process_group()
