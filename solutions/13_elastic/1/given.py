"""Train with checkpoints, and write down what happens. In the first attempt rank 1 is killed; torchrun restarts all."""

import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

STEPS, EVERY, KILLED_AFTER = 12, 4, 7  # steps of the run; between two checkpoints; of rank 1 in the first attempt
FOLDER = Path("runs/13_1")


def note(event, **what):
    """One more line in the events of this rank. The clocks of one machine agree."""
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    with open(FOLDER / f"rank_{rank}.jsonl", "a") as file:
        print(json.dumps({"time": time.time(), "attempt": attempt, "rank": rank, "event": event, **what}), file=file)


def train(rank, checkpoint):
    state = torch.load(checkpoint, weights_only=True) if checkpoint.exists() else {"step": 0, "weights": torch.zeros(3)}
    dist.barrier()  # all have read it
    note("resume", step=state["step"])
    while state["step"] < STEPS:
        time.sleep(0.1)  # the forward and the backward pass
        if rank == 1 and state["step"] == KILLED_AFTER and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            note("exit", code=-signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        gradient = torch.ones(3)
        dist.all_reduce(gradient)
        state["weights"] -= gradient
        state["step"] += 1
        note("step", step=state["step"])
        if rank == 0 and state["step"] % EVERY == 0:
            torch.save(state, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    code = 1
    try:
        train(dist.get_rank(), FOLDER / "checkpoint.pt")
        code = 0
    finally:
        note("exit", code=code)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
