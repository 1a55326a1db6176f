# check: unused
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.body(x))


def train():
    model = DistributedDataParallel(Net())  # HERE
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (model(torch.randn(8, 4)) - 1).square().mean().backward()
    optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
