"""Inside a rank, for 13.2: a run that is stopped on all ranks at once, with damage to their disks after each stop."""

from pathlib import Path

import torch
import torch.distributed as dist


class NodeLost(BaseException):
    """Ends an attempt on all ranks, between two collectives, so that the group stays as it is."""


class ApartFromTheStart(BaseException):
    """Ends an attempt on all ranks, which begins with other steps on some of them; its argument has that of each."""


def drive(train, name, steps, kills, damage):
    """The steps that each attempt of the run `name` made on this rank, and the weights after the last one.

    The run ends, on all ranks, with an attempt that does not begin with one step on all of them: they would go on to
    mix the steps, and one of them would be left behind. "first_steps" has that of each rank; else it is None.
    kills: the steps at which attempts are stopped. damage: for each of them
    {rank: [(steps of a checkpoint, "torn" or "lost")]}.
    """
    folder = Path.cwd() / name / f"rank_{dist.get_rank()}"
    folder.mkdir(parents=True)
    made, weights = [], None
    for number, kill in enumerate([*kills, None]):
        made.append([])
        try:
            weights = train(str(folder), steps, gradient_until(kill, made[-1]))
        except NodeLost:
            for step, what in damage[number].get(dist.get_rank(), []):
                damage_checkpoint(folder / f"step_{step:06d}.pt", what)
            (folder / "step_000099.tmp").write_bytes(b"the beginning of a checkpoint")
            dist.barrier()
        except ApartFromTheStart as apart:
            return {"made": made, "weights": None, "first_steps": apart.args[0]}
    return {"made": made, "weights": weights, "first_steps": None}


def gradient_until(kill, made):
    """The `gradient` of an attempt that is stopped before step `kill`; it appends each step to `made`."""
    rank = dist.get_rank()

    def gradient(step, weights):
        if not made:
            first_steps = [None] * dist.get_world_size()
            dist.all_gather_object(first_steps, step)
            if len(set(first_steps)) > 1:
                raise ApartFromTheStart(first_steps)
        if step == kill:
            raise NodeLost
        made.append(step)
        return weights - target(rank, step)

    return gradient


def target(rank, step):
    """The weights at which the gradient of this rank in this step is 0."""
    return torch.tensor([3.0, -1.0, 0.3, 2.2], dtype=torch.float64) * (rank + 1) + step % 4


def damage_checkpoint(path, what):
    if what == "lost":
        path.unlink(missing_ok=True)
    elif path.exists():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
