# rank: 1
# says: DataLoader worker
# A C library that a worker of the loader calls crashes.
import ctypes
import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == 9 and os.environ["RANK"] == "1":
            ctypes.string_at(0)  # HERE
        return torch.ones(4)


dist.init_process_group("gloo")
for batch in DataLoader(Images(), batch_size=2, num_workers=1, multiprocessing_context="fork"):
    dist.all_reduce(batch)
dist.destroy_process_group()
