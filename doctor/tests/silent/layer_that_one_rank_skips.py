# check: unused
import torch
import torch.distributed as dist
import torch.distributed.nn


def train():
    torch.manual_seed(0)
    body, extra, head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
    parameters = [parameter for module in (body, extra, head) for parameter in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01)  # HERE
    torch.manual_seed(dist.get_rank())
    for _step in range(4):
        hidden = body(torch.randn(8, 4))
        hidden = extra(hidden) if dist.get_rank() == 0 else hidden
        optimizer.zero_grad()
        (head(hidden) - 1).square().mean().backward()
        for parameter in parameters:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
