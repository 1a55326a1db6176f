import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()


def train():
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    for _step in range(3):
        with model.no_sync():
            for _micro in range(3):
                model(torch.randn(2, 4)).sum().backward()
        model(torch.randn(2, 4)).sum().backward()
        model.zero_grad()


train()
dist.destroy_process_group()
