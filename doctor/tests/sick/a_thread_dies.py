# rank: 1
# says: OSError: disk gone
import queue
import threading

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
batches = queue.Queue(maxsize=1)


def load():
    for number in range(5):
        if rank == 1 and number == 1:
            raise OSError("disk gone")  # HERE
        batches.put(torch.ones(4))


threading.Thread(target=load, daemon=True).start()
for step in range(5):
    dist.all_reduce(batches.get())
dist.destroy_process_group()
