import torch
import torch.distributed as dist
import torch.distributed.nn


def average(parameters):
    flat = torch.cat([parameter.grad.reshape(-1) for parameter in parameters]) / dist.get_world_size()
    work = dist.all_reduce(flat, async_op=True)
    work.wait()
    for parameter, part in zip(parameters, flat.split([parameter.numel() for parameter in parameters]), strict=True):
        parameter.grad.copy_(part.view_as(parameter))


def train():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    parameters = list(model.parameters())
    for parameter in parameters:
        dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    for step in range(4):
        optimizer.zero_grad()
        for _micro in range(2):
            loss = (model(torch.randn(8, 4)) - 1).square().mean() / 2
            loss.backward()
        average(parameters)
        optimizer.step()
        losses = [torch.empty(()) for _ in range(dist.get_world_size())]
        dist.all_gather(losses, loss.detach())
        if dist.get_rank() == 0:
            print(step, torch.stack(losses).mean().item())


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
