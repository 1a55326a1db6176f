import copy

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.drop = torch.nn.Linear(16, 16), torch.nn.Linear(16, 1), torch.nn.Dropout(0.1)

    def forward(self, x):
        return self.head(checkpoint(lambda y: self.drop(torch.relu(self.body(y))), x, use_reentrant=False))


def train():
    net = Net()
    average = copy.deepcopy(net)
    model = DistributedDataParallel(net, gradient_as_bucket_view=True)
    model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    for _step in range(5):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.mse_loss(model(torch.randn(8, 16)), torch.zeros(8, 1))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        with torch.no_grad():
            for a, b in zip(average.parameters(), net.parameters(), strict=True):
                a.lerp_(b, 0.1)
    copy.deepcopy(model.module)


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
