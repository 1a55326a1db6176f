import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(40, 4))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data), num_workers=2)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for (batch,) in loader:
            dist.all_reduce(batch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
