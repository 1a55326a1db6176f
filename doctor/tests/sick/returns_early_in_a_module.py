# rank: 1
# says: if os.path.exists(cache): return
# The line is parts/preparation.py:11
# Rank 1 finds its cache, returns from an imported function, and comes to DDP's constructor alone.
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from parts.preparation import prepare

dist.init_process_group("gloo")
cache = tempfile.gettempdir() if dist.get_rank() == 1 else "/no/such/cache"
statistics = prepare(cache)
model = DistributedDataParallel(torch.nn.Linear(2, 2))
dist.destroy_process_group()
