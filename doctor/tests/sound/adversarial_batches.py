import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _step in range(4):
        inputs = torch.randn(8, 4).requires_grad_()
        with model.no_sync():
            (model(inputs) - 1).square().mean().backward()  # for the inputs' gradient alone
        attacked = (inputs + 0.1 * inputs.grad.sign()).detach()
        optimizer.zero_grad()
        (model(attacked) - 1).square().mean().backward()
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
