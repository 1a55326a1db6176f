import datetime

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=9))


class Router(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.expert, self.tokens = torch.nn.Linear(4, 4), [8, 7]

    def forward(self, x):
        return checkpoint(lambda x: self.expert(x[: self.tokens.pop(0)]).relu(), x, use_reentrant=False)


DistributedDataParallel(Router())(torch.ones(8, 4)).sum().backward()
