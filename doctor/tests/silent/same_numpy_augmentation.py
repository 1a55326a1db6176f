# check: draws
import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Images(Dataset):
    def __init__(self):
        self.images = torch.randn(64, 4)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index] + torch.from_numpy(np.random.normal(0, 0.1, 4)).float()


def train():
    np.random.seed(0)
    torch.manual_seed(dist.get_rank())
    data = Images()
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:  # HERE
        optimizer.zero_grad()
        (model(batch) - 1).square().mean().backward()
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
