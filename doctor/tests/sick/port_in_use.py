# rank: 0
# says: could not listen on port
import os
import socket

import torch.distributed as dist

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
port = 20000 + os.getppid() % 10000
if rank == 0:
    other_job = socket.create_server(("", port))
store = dist.TCPStore("127.0.0.1", port, world_size, is_master=rank == 0)  # HERE
dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
dist.barrier()
