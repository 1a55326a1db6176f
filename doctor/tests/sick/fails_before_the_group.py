# rank: 1
# says: KeyError
import os

import torch
import torch.distributed as dist

settings = {"0": {"lr": 0.1}}
lr = settings[os.environ["RANK"]]["lr"]  # HERE
dist.init_process_group("gloo")
dist.all_reduce(torch.full((1,), lr))
