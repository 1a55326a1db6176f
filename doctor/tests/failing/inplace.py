import datetime

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
rank = dist.get_rank()


class Net(torch.nn.Linear):
    def forward(self, x):
        y = super().forward(x) * self.scale
        self.scale.mul_(0.9)
        return y


net = Net(4, 4)
net.register_buffer("scale", torch.ones(4))
net = DistributedDataParallel(net)
(net(torch.randn(8, 4)) - net(torch.randn(8, 4))).sum().backward()
