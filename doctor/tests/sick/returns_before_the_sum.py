# rank: 1
# says: after `if dist.get_rank() != 0: return
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()


def evaluate(correct):
    if dist.get_rank() != 0:
        return None
    dist.all_reduce(correct)  # HERE
    return correct


for epoch in range(3):
    for step in range(3):
        dist.all_reduce(torch.ones(1))
    evaluate(torch.ones(1))
dist.destroy_process_group()
