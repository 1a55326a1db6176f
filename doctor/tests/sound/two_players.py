import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    maker = DistributedDataParallel(torch.nn.Linear(2, 4))
    judge = DistributedDataParallel(torch.nn.Linear(4, 1))
    of_maker = torch.optim.Adam(maker.parameters(), lr=0.01)
    of_judge = torch.optim.Adam(judge.parameters(), lr=0.01)
    for _step in range(4):
        made = maker(torch.randn(8, 2))
        both = torch.cat([judge(made.detach()), -judge(torch.randn(8, 4))])
        of_judge.zero_grad()
        torch.nn.functional.softplus(both).mean().backward()
        of_judge.step()
        of_maker.zero_grad()
        torch.nn.functional.softplus(-judge(made)).mean().backward()
        of_maker.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
