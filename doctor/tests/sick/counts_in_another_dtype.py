# rank: 1
# says: types
# The rank without hits sends an int64 zero, the other one a float32.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
hits = torch.tensor(0.5) if rank == 0 else torch.tensor(0)
dist.all_reduce(hits)  # HERE
dist.destroy_process_group()
