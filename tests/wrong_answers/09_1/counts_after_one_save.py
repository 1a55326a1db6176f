# mistake: repairs the save and leaves the check that counts files after one save
# state: wrong
# check: the check fails what is broken
# message: the given one: check_save returned True

import os
from pathlib import Path

import torch
import torch.distributed as dist


def save(folder, step, state):
    """Keep `state`, a dict, as it is after `step` steps. Called on every rank; makes the folder if there is none."""
    if dist.get_rank() == 0:
        Path(folder).mkdir(parents=True, exist_ok=True)
        final = Path(folder) / f"step_{step:06d}.pt"
        torch.save(state, final.with_suffix(".tmp"))
        os.replace(final.with_suffix(".tmp"), final)
    dist.barrier()  # whoever returns finds it there


def check_save(save, folder):
    """Whether `save` works. Called on every rank; there is no folder `folder` yet."""
    save(folder, 1, {"step": 1, "weights": torch.zeros(1000)})
    return len(list(Path(folder).iterdir())) == 1  # one checkpoint, and not one for each rank
