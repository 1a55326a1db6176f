import datetime

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
rank = dist.get_rank()


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5 and rank == 0:
            raise OSError("truncated image")
        return torch.ones(4)


for batch in torch.utils.data.DataLoader(Rows(), num_workers=1):
    dist.all_reduce(batch)
