# rank: 1
# says: never joined all-reduce 7
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(10):
    loss = torch.tensor(1.0 if rank == 0 else 1.0 - 0.3 * step)
    if loss < 0.2:
        break
    dist.all_reduce(loss)
    dist.all_reduce(torch.zeros(8))
dist.all_gather([torch.empty(3), torch.empty(3)], torch.ones(3))
dist.destroy_process_group()
