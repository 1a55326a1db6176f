import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()


def train():
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    with Join([model]):
        for batch in torch.randn(6 if rank == 0 else 3, 2, 4):
            model(batch).sum().backward()


train()
dist.destroy_process_group()
