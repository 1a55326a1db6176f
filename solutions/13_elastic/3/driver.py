"""Inside a rank, for 13.3: send signals at known moments of a run, and report what this rank did, and when."""

import os
import signal
import time
from itertools import count
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist


def drive(train, steps, signals):
    """The steps that this rank made, its exit code, its saves with the time of each, and the time when train returned.

    signals: {rank: the steps in which its call of gradient raises SIGTERM}; with "save": True, every rank
    is sent another one while rank 0 saves; with "after": n, rank 1 raises it when its n-th all-reduce has returned,
    and the result has the steps of that and of its later all-reduces as "reduced_in". Times are of time.monotonic(),
    which all processes of a machine share.
    """
    rank, made, saves, reduced_in = dist.get_rank(), [], [], []
    all_reduce, number = dist.all_reduce, count(1)
    if not (file := Path(f"rank_{rank}.pid")).exists():  # once, and whole: another rank may read it in the next call
        file.with_suffix(".new").write_text(str(os.getpid()))
        file.with_suffix(".new").rename(file)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as at the start of a process

    def gradient(step):
        made.append(step)
        if step in signals.get(rank, []):
            signal.raise_signal(signal.SIGTERM)  # the handler has run when this returns
        return torch.tensor([1.0, step, rank], dtype=torch.float64)

    def save(steps_made, weights):
        time.sleep(0.1)  # a slow disk
        if signals.get("save"):
            for path in Path.cwd().glob("rank_*.pid"):
                os.kill(int(path.read_text()), signal.SIGTERM)
        saves.append([steps_made, weights.detach().clone(), time.monotonic()])

    def all_reduce_then_signal(*args, **kwargs):
        work = all_reduce(*args, **kwargs)
        if rank == 1 and "after" in signals and (now := next(number)) >= signals["after"]:
            reduced_in.append(made[-1])
            if now == signals["after"]:
                signal.raise_signal(signal.SIGTERM)
        return work

    with patch.object(dist, "all_reduce", all_reduce_then_signal):
        code = train(steps, gradient, save)
    returned = time.monotonic()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.barrier()
    return {"made": made, "code": code, "saves": saves, "returned": returned, "reduced_in": reduced_in}
