# rank: 1
# says: got no gradient
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x, skip):
        return self.body(x) if skip else self.head(self.body(x))


model = DistributedDataParallel(Net())
for step in range(3):
    model(torch.ones(2, 4), skip=rank == 1).sum().backward()  # HERE
dist.destroy_process_group()
