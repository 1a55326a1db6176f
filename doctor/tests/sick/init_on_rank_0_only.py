# rank: 1
# says: never called init_process_group
import os
import threading

import torch.distributed as dist

if os.environ["RANK"] == "0":
    dist.init_process_group("gloo")  # HERE
else:
    threading.Event().wait()
