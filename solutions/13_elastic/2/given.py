"""Train on machines that keep their checkpoints on disks of their own, and go on after a restart."""

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

EVERY = 3  # steps between two checkpoints


def path_of(folder, step):
    return Path(folder) / f"step_{step:06d}.pt"


def save(folder, step, state):
    """Keep `state`, a dict of tensors, as this rank's checkpoint after `step` steps."""
    path_of(folder, step).parent.mkdir(parents=True, exist_ok=True)
    torch.save({"step": step, **state}, path_of(folder, step))


def load(path):
    """The content of a checkpoint; None if it is torn, or not there."""
    try:
        return torch.load(path, weights_only=True)
    except Exception:  # what torch says of a torn file depends on where it ends
        return None


def resume(folder):
    """This rank's state to go on from, with "step"; None if it has to begin."""
    paths = sorted(Path(folder).glob("step_*.pt"))
    return load(paths[-1]) if paths else None


def train(folder, steps, gradient):
    """Make the steps that are missing of `steps`; returns the weights.

    folder: of this rank alone. gradient(step, weights): of this rank's samples in that step.
    """
    zeros = torch.zeros(4, dtype=torch.float64)
    state = resume(folder) or {"step": 0, "weights": zeros, "momentum": zeros, "rest": zeros}
    first, weights, momentum, rest = (state[name] for name in ("step", "weights", "momentum", "rest"))
    for number, step in enumerate(range(first, steps)):
        exact = gradient(step, weights) + rest
        total = (8 * exact).round() / 8  # what is sent is compressed; the rest is this rank's own, for the next step
        rest = exact - total
        dist.all_reduce(total)
        momentum = momentum / 2 + total / dist.get_world_size()
        weights = weights - 0.1 * (1 - number / steps) * momentum
        if (step + 1) % EVERY == 0:
            save(folder, step + 1, {"weights": weights, "momentum": momentum, "rest": rest})
    return weights


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    rank, made = dist.get_rank(), []
    folder = Path(f"runs/13_2/rank_{rank}")
    for old in folder.glob("*.pt"):
        old.unlink()
    dist.barrier()

    def gradient(step, weights):
        made.append(step)
        return weights - torch.arange(4.0, dtype=torch.float64) * (rank + step)

    straight = train(folder, 12, gradient)
    made.clear()
    path_of(folder, 12).unlink()
    if rank == 1:
        path_of(folder, 9).write_bytes(path_of(folder, 9).read_bytes()[:500])  # the write did not come to its end
    again = train(folder, 12, gradient)
    equal = torch.equal(straight, again)
    print(f"rank {rank} made the steps {made} again; equal to the run before: {equal}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
