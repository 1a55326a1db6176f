"""Train until all steps are made, or until somebody asks for a stop by SIGTERM."""

import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

STOPPED = 75  # exit code: not done, and worth another start


def train(steps, gradient, save):
    """Make `steps` steps, or stop when asked; returns the exit code.

    gradient(step): of this rank's samples. save(steps_made, weights): the checkpoint to go on from.
    """
    asked, weights = [], torch.zeros(3, dtype=torch.float64)
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    for step in range(steps):
        total = gradient(step)
        dist.all_reduce(total)
        weights -= 0.1 * total / dist.get_world_size()
        if asked:
            save(step + 1, weights)
            return STOPPED
    save(steps, weights)
    return 0


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    rank = dist.get_rank()

    def gradient(step):
        if rank == 1 and step == 3:
            os.kill(os.getpid(), signal.SIGTERM)  # as a scheduler, or somebody at a terminal
        return torch.ones(3, dtype=torch.float64)

    def save(steps_made, weights):
        print(f"rank {rank} saves after {steps_made} steps", flush=True)

    code = train(6, gradient, save)
    dist.destroy_process_group()
    sys.exit(code)


if __name__ == "__main__":
    main()
