# rank: 0 1
# says: every rank raised FileNotFoundError
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(4))
weights = open("weights_that_are_not_there.pt", "rb").read()  # HERE
dist.broadcast(torch.ones(4), src=0)
dist.destroy_process_group()
