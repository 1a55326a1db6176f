import datetime
import logging
import sys
import time

import torch
import torch.distributed as dist

logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
rank = dist.get_rank()
dist.all_reduce(torch.ones(4))
if rank == 2:
    time.sleep(1)
    logging.error("cannot read shard 7")
    raise OSError("cannot read shard 7")
try:
    dist.all_reduce(torch.ones(4))
except Exception:
    logging.exception("rank %d failed", rank)
    raise
