# rank: 1
# says: another order
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
losses, counts = torch.ones(1), torch.full((1,), 100.0)


def sum_losses():
    dist.all_reduce(losses)


def sum_counts():
    dist.all_reduce(counts)  # HERE


for step in range(3):
    for metric in {0: [sum_losses, sum_counts], 1: [sum_counts, sum_losses]}[rank]:
        metric()
dist.destroy_process_group()
