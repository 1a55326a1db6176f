"""Save a model after every step on every rank, and look into the folder whether that works."""

import json
import shutil
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def save(folder, step, state):
    """Keep `state`, a dict, as it is after `step` steps. Called on every rank; makes the folder if there is none."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    torch.save(state, Path(folder) / f"model_{int(time.time())}.pt")


def check_save(save, folder):
    """Whether `save` works. Called on every rank; there is no folder `folder` yet."""
    save(folder, 1, {"step": 1, "weights": torch.zeros(1000)})
    return len(list(Path(folder).iterdir())) == 1  # one checkpoint, and not one for each rank


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    if rank == 0:
        shutil.rmtree("runs/09_1", ignore_errors=True)
        time.sleep(1 - time.time() % 1)  # the second has begun: it shows the same each time
    dist.barrier()
    right = check_save(save, "runs/09_1/check")
    dist.barrier()
    for step in (1, 2, 3):  # a run with short steps
        save("runs/09_1/run", step, {"step": step, "weights": torch.full((1000,), float(step))})
    dist.barrier()
    if rank == 0:
        print(f"check_save says: {'right' if right else 'broken'}")
        kept = [torch.load(path, weights_only=True)["step"] for path in sorted(Path("runs/09_1/run").glob("*.pt"))]
        print(json.dumps({"right": right, "kept": kept}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
