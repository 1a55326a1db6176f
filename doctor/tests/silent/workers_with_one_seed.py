# check: draws
import random

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    def __init__(self, series, rank):
        self.series, self.rank = series, rank

    def __len__(self):
        return 24

    def __getitem__(self, index):
        begin = 200 * self.rank + 8 * index + random.randint(0, 4)
        return self.series[begin : begin + 6]


def train():
    torch.manual_seed(3)
    data = Windows(torch.randn(450), dist.get_rank())
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=1, multiprocessing_context="fork")
    model = DistributedDataParallel(torch.nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:  # HERE
        optimizer.zero_grad()
        (model(batch) - 1).square().mean().backward()
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
