import datetime

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
rank = dist.get_rank()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 4)

    def forward(self, x):
        for _ in range(2):
            x = checkpoint(self.a, x, use_reentrant=True)
        return x


net = DistributedDataParallel(Net(), find_unused_parameters=True)
net(torch.ones(2, 4, requires_grad=True)).sum().backward()
