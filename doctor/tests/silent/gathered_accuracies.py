# check: metrics
# says: over shares of 11 and 10
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset, TensorDataset


@torch.no_grad()
def accuracy(model, loader):
    right, number = 0, 0
    for inputs, labels in loader:
        right += (model(inputs).argmax(1) == labels).sum().item()
        number += len(labels)
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, right / number)  # HERE
    return torch.tensor(every).mean().item()


def train():
    torch.manual_seed(0)
    inputs = torch.randn(21, 3)
    held_out = TensorDataset(inputs, inputs.argmax(1))
    part = Subset(held_out, range(dist.get_rank(), 21, dist.get_world_size()))
    model = DistributedDataParallel(torch.nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(6):
        batch = torch.randn(8, 3)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch), batch.argmax(1)).backward()
        optimizer.step()
        value = accuracy(model, DataLoader(part, batch_size=4))
    if dist.get_rank() == 0:
        print("accuracy", round(value, 4))


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
