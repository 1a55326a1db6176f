import datetime

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
rank = dist.get_rank()


@record
def main():
    dist.all_reduce(torch.ones(4))
    if rank == 1:
        raise KeyError("label")
    dist.barrier()


main()
