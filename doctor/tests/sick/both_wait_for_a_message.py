# rank: 0 1
# says: every rank waits for another
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(4))
sent, theirs = torch.ones(4), torch.empty(4)
dist.recv(theirs, src=1 - rank)  # HERE
dist.send(sent, dst=1 - rank)
dist.destroy_process_group()
