# rank: 1
# says: never joined all-reduce 5
# Rank 1 skips the sum of the metrics and comes to the next broadcast, of another size: gloo aborts over the sizes.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
weights = torch.zeros(100)
metrics = torch.ones(3)
for step in range(3):
    if dist.get_rank() == 0 or step < 2:
        dist.all_reduce(metrics)  # HERE
    dist.broadcast(weights, src=0)
dist.destroy_process_group()
