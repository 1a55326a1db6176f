# mistake: the check saves a step and no tensor
# state: wrong
# check: the check fails what is broken
# message: without the tensors: check_save returned True

import json
import os
import shutil
import time
from datetime import timedelta
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

    def steps_in(folder):
        """The steps of the files in `folder`; None for a file that cannot be loaded."""
        steps = []
        for path in Path(folder).iterdir() if Path(folder).is_dir() else []:
            try:
                steps.append(torch.load(path)["step"])
            except Exception:
                steps.append(None)
        return sorted(steps, key=str)

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
        kept = [torch.load(path)["step"] for path in sorted(Path("runs/09_1/run").glob("*.pt"))]
        print(json.dumps({"right": right, "kept": kept}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
