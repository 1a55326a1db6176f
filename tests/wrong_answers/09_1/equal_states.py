# mistake: the check passes the same state on every rank
# state: wrong
# check: the check fails what is broken
# message: the state of the last rank: check_save returned True

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
    ### BEGIN SOLUTION
    if dist.get_rank() == 0:
        Path(folder).mkdir(parents=True, exist_ok=True)
        final = Path(folder) / f"step_{step:06d}.pt"
        torch.save(state, final.with_suffix(".tmp"))
        os.replace(final.with_suffix(".tmp"), final)
    dist.barrier()  # whoever returns finds it there
    ### END SOLUTION


def check_save(save, folder):
    """Whether `save` works. Called on every rank; there is no folder `folder` yet."""

    ### BEGIN SOLUTION
    def state_of(rank, step):
        return {"step": step, "weights": torch.arange(5) + 10 * step}

    def plain(state):
        """The state with lists for tensors: these can be compared by ==."""
        return {name: torch.as_tensor(value).tolist() for name, value in state.items()}

    def states_in(folder):
        """What the files in `folder` hold, by step; None for a file that cannot be loaded."""
        states = []
        for path in Path(folder).iterdir() if Path(folder).is_dir() else []:
            try:
                states.append(plain(torch.load(path)))
            except Exception:
                states.append(None)
        return sorted(states, key=str)

    rank = dist.get_rank()
    save(f"{folder}/rank_{rank}", 1, state_of(rank, 1))  # a folder for each rank: who writes shows
    fine = states_in(f"{folder}/rank_{rank}") == ([plain(state_of(0, 1))] if rank == 0 else [])
    saved = []
    for step in (1, 2, 3):
        save(f"{folder}/shared", step, state_of(rank, step))
        saved.append(plain(state_of(0, step)))
        fine &= states_in(f"{folder}/shared") == saved  # at once, on every rank
        dist.barrier()  # everybody has looked: now the next one may begin
    verdict = torch.tensor(int(fine))
    dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
    return bool(verdict)
    ### END SOLUTION


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
