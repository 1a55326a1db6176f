# rank: 0
# says: goes past DDP
# Rank 0 trains past the wrapper in every third step: its backward pass sends nothing.
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    if rank == 0 and step % 3 == 2:
        loss = model.module(torch.ones(2, 4)).sum()
    else:
        loss = model(torch.ones(2, 4)).sum()
    loss.backward()  # HERE
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
