# check: averaged
# says: clips its own gradient
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_value_


def train():
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for micro in range(12):
        last = micro % 3 == 2
        model.require_backward_grad_sync = last
        loss = torch.nn.functional.mse_loss(model(torch.randn(8, 6)), torch.full((8, 1), 9.0))
        loss.backward()
        clip_grad_value_(model.parameters(), 0.3)  # HERE
        if last:
            optimizer.step()
            optimizer.zero_grad()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
