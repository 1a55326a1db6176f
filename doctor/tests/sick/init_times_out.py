# rank: 1
# says: never
import datetime
import os
import threading

import torch.distributed as dist

if os.environ["RANK"] == "1":
    threading.Event().wait()
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3))  # HERE
dist.barrier()
