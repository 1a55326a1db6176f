# Rank 0 waits 25 s for a program that uses no processor, rank 1 waits in a barrier.
import subprocess

import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    subprocess.run(["sleep", "25"], check=True)
dist.barrier()
dist.destroy_process_group()
