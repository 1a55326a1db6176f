# check: metrics
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train():
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False))
    total = 0.0
    with torch.no_grad():
        for inputs, targets in loader:
            total += torch.nn.functional.mse_loss(model(inputs), targets).item()
    if dist.get_rank() == 0:
        print(f"validation loss {total / len(loader):.4f}")  # HERE


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
