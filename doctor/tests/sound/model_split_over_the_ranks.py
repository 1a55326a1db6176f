import torch
import torch.distributed as dist
import torch.distributed.nn as differentiable


class Columns(torch.nn.Module):
    """Each rank holds half of the hidden layer; the halves' outputs are added."""

    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 8, bias=False), torch.nn.Linear(8, 1, bias=False)

    def forward(self, x):
        return differentiable.all_reduce(self.down(torch.relu(self.up(x))))


def train():
    torch.manual_seed(dist.get_rank())
    model = Columns()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(0)
    for step in range(4):
        loss = (model(torch.randn(8, 4)) - 1).square().mean()  # the same batch on both: one model
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(step, f"{loss.item():.4f}")


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
