# rank: 1
# says: after `if not torch.isfinite(loss): continue`
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train():
    samples = torch.randn(40, 3)
    samples[21] = float("nan")
    data = TensorDataset(samples)
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False))
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _epoch in range(2):
        total = torch.zeros(1)
        for (batch,) in loader:
            loss = model(batch).square().mean()
            if not torch.isfinite(loss):
                continue
            optimizer.zero_grad()
            loss.backward()  # HERE
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
