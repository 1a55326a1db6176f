# mistake: lets rank 0 alone write, still named by the second
# state: wrong
# check: every save leaves a file
# message: saves of different steps there were 1,

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist


def save(folder, step, state):
    """Keep `state`, a dict, as it is after `step` steps. Called on every rank; makes the folder if there is none."""
    if dist.get_rank() == 0:
        Path(folder).mkdir(parents=True, exist_ok=True)
        final = Path(folder) / f"model_{int(time.time())}.pt"
        torch.save(state, final.with_suffix(".tmp"))
        os.replace(final.with_suffix(".tmp"), final)
    dist.barrier()  # whoever returns finds it there


def check_save(save, folder):
    """Whether `save` works. Called on every rank; there is no folder `folder` yet."""
    rank = dist.get_rank()
    save(f"{folder}/rank_{rank}", 1, {"step": 1})  # a folder for each rank: who writes shows
    fine = steps_in(f"{folder}/rank_{rank}") == ([1] if rank == 0 else [])
    for step in (1, 2, 3):
        save(f"{folder}/shared", step, {"step": step})
        fine &= steps_in(f"{folder}/shared") == list(range(1, step + 1))  # at once, on every rank
        dist.barrier()  # everybody has looked: now the next one may begin
    verdict = torch.tensor(int(fine))
    dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
    return bool(verdict)


def steps_in(folder):
    """The steps of the files in `folder`; None for a file that cannot be loaded."""
    steps = []
    for path in Path(folder).iterdir() if Path(folder).is_dir() else []:
        try:
            steps.append(torch.load(path)["step"])
        except Exception:
            steps.append(None)
    return sorted(steps, key=str)
