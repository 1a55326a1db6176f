"""Train for a fixed time; the learning rate falls to zero over that time."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist


def train(clock, gradient_of, limit):
    """Make steps until `limit` seconds are over; returns the learning rate of each step, and the weights.

    clock(): the seconds on this rank's clock. gradient_of(weights): the gradient from this rank's samples.
    """
    weights, rates = torch.zeros(3, dtype=torch.float64), []
    while (seconds := clock()) < limit:
        rates.append(0.1 * (1 - seconds / limit))
        gradient = gradient_of(weights)
        dist.all_reduce(gradient)
        weights -= rates[-1] * gradient / dist.get_world_size()
    dist.barrier()  # all ranks have finished
    return rates, weights


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    rank = dist.get_rank()
    time.sleep(0.05 * rank)  # this rank had more to load
    began = time.monotonic()

    def gradient_of(weights):
        time.sleep(0.01)  # the forward and the backward pass
        return weights - torch.arange(3.0, dtype=torch.float64) - rank

    rates, weights = train(lambda: time.monotonic() - began, gradient_of, limit=0.5)
    print(f"rank {rank}: {len(rates)} steps, last learning rate {rates[-1]:.4f}, weights {weights.tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
