import datetime
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=9))
weights = torch.nn.Linear(4, 4).state_dict()
dcp.save({"model": weights}, checkpoint_id=sys.argv[1] + "checkpoint")
dcp.load({"net": weights}, checkpoint_id=sys.argv[1] + "checkpoint")
