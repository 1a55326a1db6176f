# rank: 1
# says: instead
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(model, batches):
    for batch in batches:
        loss = model(batch).mean()
        loss.backward()  # HERE


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    for _ in range(2):
        train(model, torch.randn(5 if dist.get_rank() == 0 else 3, 2, 4))
        dist.barrier()
    dist.destroy_process_group()


main()
