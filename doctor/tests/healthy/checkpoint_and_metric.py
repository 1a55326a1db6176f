import os
import tempfile

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
folder = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(folder, src=0)
path = os.path.join(folder[0], "checkpoint.pt")
weight = torch.zeros(8)
for step in range(6):
    gradient = torch.randn(8)
    work = dist.all_reduce(gradient, async_op=True)
    correct, count = torch.ones(1), torch.ones(1)
    work.wait()
    weight -= gradient / world_size
    if step % 3 == 2:
        if rank == 0:
            torch.save(weight, path + ".new")
            os.replace(path + ".new", path)
        dist.barrier()
        weight = torch.load(path)
        dist.all_reduce(correct)
        dist.all_reduce(count)
        if rank == 0:
            print(step, (correct / count).item())
dist.destroy_process_group()
