# rank: 1
# says: never joined barrier
# A helper that only the main process enters waits for all.
import functools
import tempfile

import torch
import torch.distributed as dist


def main_process_only(function):
    @functools.wraps(function)
    def inner(*arguments):
        return function(*arguments) if dist.get_rank() == 0 else None

    return inner


@main_process_only
def save(state):
    with tempfile.TemporaryFile() as file:
        torch.save(state, file)
    dist.barrier()  # HERE


dist.init_process_group("gloo")
for step in range(3):
    dist.all_reduce(torch.ones(5))
    save({"step": step})
dist.destroy_process_group()
