"""Inside a rank, for 13.3: signals at known moments of a run, and who did what, when."""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist


def drive(train, steps, signals):
    """signals: {rank: the steps in whose forward pass it is sent SIGTERM}, and under "save" whether all are sent one
    then, the others while they wait.

    Returns the steps made, the exit code, the saves, and the times at which the save and the call had ended: they are
    those of one clock, which all processes of a machine share.
    """
    rank, made, saves = dist.get_rank(), [], []
    Path(f"rank_{rank}.pid").write_text(str(os.getpid()))
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

    code = train(steps, gradient, save)
    returned = time.monotonic()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.barrier()
    return {"made": made, "code": code, "saves": saves, "returned": returned}
