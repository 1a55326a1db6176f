import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel


def train():
    generator = torch.Generator().manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _epoch in range(2):
        with Join([model]):
            for _step in range(4 + 2 * dist.get_rank()):
                optimizer.zero_grad()
                (model(torch.randn(8, 4, generator=generator)) - 1).square().mean().backward()
                optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
