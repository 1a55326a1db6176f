# mistake: leaves both as they were
# state: wrong
# check: rank 0 writes and nobody else
# message: rank 0 and rank 1 wrote in one call

import time
from pathlib import Path

import torch


def save(folder, step, state):
    """Keep `state`, a dict, as it is after `step` steps. Called on every rank; makes the folder if there is none."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    torch.save(state, Path(folder) / f"model_{int(time.time())}.pt")


def check_save(save, folder):
    """Whether `save` works. Called on every rank; there is no folder `folder` yet."""
    save(folder, 1, {"step": 1, "weights": torch.zeros(1000)})
    return len(list(Path(folder).iterdir())) == 1  # one checkpoint, and not one for each rank
