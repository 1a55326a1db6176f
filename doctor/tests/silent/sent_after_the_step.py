# check: averaged
# says: sent after the step
import torch
import torch.distributed as dist
import torch.distributed.nn


def train():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    for _step in range(4):
        optimizer.zero_grad()
        (model(torch.randn(8, 4)) - 3).square().mean().backward()
        optimizer.step()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)  # HERE
            parameter.grad /= dist.get_world_size()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
