# check: averaged
# says: 2 times too small
import torch
import torch.distributed as dist
import torch.distributed.nn


def train():
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _step in range(4):
        inputs = torch.randn(8, 6, generator=generator)
        loss = torch.nn.functional.cross_entropy(model(inputs), (inputs.sum(1) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)  # HERE
            parameter.grad /= dist.get_world_size()
            parameter.grad.mul_(1 / dist.get_world_size())
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
