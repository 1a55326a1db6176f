import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
weight = torch.ones(4) if rank == 0 else torch.zeros(4)
dist.broadcast(weight, src=0)
for step in range(20):
    gradient = torch.randn(4)
    dist.all_reduce(gradient)
    weight -= 0.1 * gradient / dist.get_world_size()
gathered = [None] * dist.get_world_size()
dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
dist.barrier()
dist.destroy_process_group()
