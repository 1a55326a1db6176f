"""Every rank has measured its own samples; the log should say what is true of all samples."""

import json
from datetime import timedelta

import torch
import torch.distributed as dist

SUMS = [{"loss": 50.0, "correct": 90.0}, {"loss": 400.0, "correct": 60.0}, {"loss": 1250.0, "correct": 15.0}]
COUNTS = [100, 200, 400]  # samples, by rank


def evaluate(sums, count):
    """From this rank's sums over its `count` samples: the means over the samples of all ranks."""
    total = torch.tensor([*sums.values(), count], dtype=torch.float64)
    dist.reduce(total, dst=0)  # add up on rank 0
    print(json.dumps({"after the reduce": total.tolist()}), flush=True)
    if dist.get_rank() == 0:
        return {name: value / count for name, value in sums.items()}


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank = dist.get_rank()
    means = evaluate(SUMS[rank], COUNTS[rank])
    if rank == 0:
        print(f"log: loss {means['loss']:.3f}, correct {means['correct']:.3f}", flush=True)
    dist.barrier()
    if means["loss"] < 0.1:
        print("good enough: stop training")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
