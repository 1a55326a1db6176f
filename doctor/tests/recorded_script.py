"""Rank 1 skips the second of three all-reduces. Each rank writes torch's flight recorder dump to FOLDER/RANK.

recorded_script.py FOLDER
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace


def train(dump):
    values = [torch.ones(3, 4) for _ in range(3)]
    work = [dist.all_reduce(values[0], async_op=True)]
    if dist.get_rank() == 0:
        work.append(dist.all_reduce(values[1], async_op=True))  # SKIPPED
    work.append(dist.all_reduce(values[2], async_op=True))
    dump.write_bytes(_dump_fr_trace(True, True, False))
    if dist.get_rank() == 1:
        work.append(dist.all_reduce(values[1], async_op=True))  # so that all three meet, and the job ends
    for handle in work:
        handle.wait()


dist.init_process_group("gloo")
train(Path(sys.argv[1]) / str(dist.get_rank()))
dist.destroy_process_group()
