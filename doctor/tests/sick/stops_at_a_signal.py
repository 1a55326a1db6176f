# rank: 1
# says: if stopping: break
# The scheduler's warning reaches one rank alone, which ends its loop.
import os
import signal

import torch
import torch.distributed as dist

stopping = False


def stop(*_):
    global stopping
    stopping = True


signal.signal(signal.SIGUSR1, stop)
dist.init_process_group("gloo")
for step in range(8):
    if stopping:
        break
    loss = torch.ones(1)
    dist.all_reduce(loss)  # HERE
    if dist.get_rank() == 1 and step == 3:
        os.kill(os.getpid(), signal.SIGUSR1)
state = [None, None]
dist.all_gather_object(state, {"step": step})
dist.destroy_process_group()
