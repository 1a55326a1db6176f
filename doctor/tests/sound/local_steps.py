import torch
import torch.distributed as dist
import torch.distributed.nn


def train():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    for step in range(10):
        optimizer.zero_grad()
        (model(torch.randn(8, 4)) - 1).square().mean().backward()
        optimizer.step()
        if step % 4 == 3:  # local SGD: the weights are averaged now and then
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
