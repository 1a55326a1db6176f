# check: metrics
# status: note
# says: the mean loss of its own batches
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        total = 0.0
        for _step in range(5):
            loss = (model(torch.randn(8, 4)) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {total / 5:.4f}")  # HERE


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
