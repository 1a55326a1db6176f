# rank: 0 1
# says: rank=0 on 2 of them
import os

import torch.distributed as dist

rank = int(os.environ.get("SLURM_PROCID", 0))
store = dist.TCPStore("127.0.0.1", 20000 + os.getppid() % 10000, 2, os.environ["RANK"] == "0", wait_for_workers=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)  # HERE
dist.barrier()
