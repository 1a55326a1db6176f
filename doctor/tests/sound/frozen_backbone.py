import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


class Scorer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
        self.backbone.requires_grad_(False)

    def forward(self, x):
        return self.head(self.backbone(x))


def train():
    model = DistributedDataParallel(Scorer())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    for step in range(4):
        for micro in range(2):
            model.require_backward_grad_sync = micro == 1
            ((model(torch.randn(8, 4)) - 1).square().mean() / 2).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
