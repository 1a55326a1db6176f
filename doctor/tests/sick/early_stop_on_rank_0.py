# rank: 0
# says: patience
# Rank 0 alone validates, and alone stops when the loss no longer falls.
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 2))
patience, best = 2, 1e9
for epoch in range(6):
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()  # HERE
    if rank == 0:
        loss = [3.0, 2.0, 2.5, 2.6, 2.7, 2.8][epoch]
        patience -= loss >= best
        best = min(best, loss)
        if patience == 0:
            break
dist.destroy_process_group()
