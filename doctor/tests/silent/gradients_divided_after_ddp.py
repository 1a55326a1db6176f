# check: scale
# says: 2 times too small
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(6, 3), torch.nn.Linear(6, 1)

    def forward(self, x):
        return self.a(x), self.b(x)


def train():
    model = DistributedDataParallel(Head())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _step in range(4):
        inputs = torch.randn(8, 6)
        classes, value = model(inputs)
        loss = torch.nn.functional.cross_entropy(classes, inputs[:, :3].argmax(1)) + 0.5 * (value - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()  # HERE
        for parameter in model.parameters():
            parameter.grad.mul_(1.0 / dist.get_world_size())
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
