# rank: 0 1
# says: world_size=4
import os

import torch.distributed as dist

os.environ["WORLD_SIZE"] = "4"
dist.init_process_group("gloo", init_method="env://", rank=int(os.environ["RANK"]), world_size=4)  # HERE
dist.barrier()
