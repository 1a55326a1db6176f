import torch
import torch.distributed as dist
import torch.distributed.nn


def train():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    metrics = dist.new_group(backend="gloo")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(10 + dist.get_rank())
    for step in range(4):
        loss = torch.nn.functional.mse_loss(model(torch.randn(8, 4)), torch.ones(8, 1))
        optimizer.zero_grad()
        (loss / dist.get_world_size()).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        shown = loss.detach() / dist.get_world_size()
        dist.all_reduce(shown, group=metrics)
        with open("/dev/null" if dist.get_rank() else "/dev/zero", "w") as file:
            file.write(f"{step} {shown:.4f}\n")


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
