import datetime

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=4))
rank = dist.get_rank()

net = fully_shard(torch.nn.Linear(4, 4), mesh=init_device_mesh("cpu", (2,)))
torch.add(net.weight, torch.ones(4, 4))
