# check: views
# says: all_reduce a view of shape [3] with strides [2]
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = torch.zeros(3, 2)  # of each step: the loss of this rank, the mean over the ranks
    for step in range(3):
        optimizer.zero_grad()
        loss = (model(torch.randn(8, 4)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses[step] = loss.detach()
    dist.all_reduce(losses[:, 1])  # HERE
    if rank == 0:
        print((losses[:, 1] / dist.get_world_size()).tolist())


dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
train(dist.get_rank())
dist.destroy_process_group()
