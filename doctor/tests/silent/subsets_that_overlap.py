# check: samples
# says: 2 samples are
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset


def train():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    half = len(data) // dist.get_world_size()
    first = dist.get_rank() * half
    part = Subset(data, range(first, min(first + half + 2, len(data))) if dist.get_rank() == 0 else range(half, 64))
    torch.manual_seed(dist.get_rank())
    loader = DataLoader(part, batch_size=8, shuffle=True, drop_last=False)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for inputs, targets in loader:  # HERE
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
