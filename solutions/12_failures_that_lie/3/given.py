"""Train on all ranks on rare samples as often as on common ones. The loss falls and the replicas are equal."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import WeightedRandomSampler

SAMPLES, DRAWS, EPOCHS, SEED = 60, 24, 3, 5  # samples there are; draws of all ranks in an epoch


def indices(weights, draws, seed, epoch):
    """The samples of this rank in an epoch, in order: its part of `draws` draws by weight."""
    generator = torch.Generator().manual_seed(seed)
    return list(WeightedRandomSampler(weights, draws // dist.get_world_size(), generator=generator))


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    inputs, rare = torch.randn(SAMPLES, 4), torch.rand(SAMPLES) < 0.2
    targets, model = inputs.sum(1) + 2 * rare, torch.zeros(4)
    weights = torch.where(rare, 1 / rare.sum(), 1 / (~rare).sum())
    for epoch in range(EPOCHS):
        own_draws = indices(weights, DRAWS, SEED, epoch)
        for batch in torch.tensor(own_draws).split(4):
            error = inputs[batch] @ model - targets[batch]
            gradient = torch.cat([inputs[batch].T @ error / len(batch), error.square().mean()[None]])
            dist.all_reduce(gradient)
            model -= 0.1 * gradient[:4] / world
        ledger = [None] * world
        dist.all_gather_object(ledger, own_draws)
        if rank == 0:
            print(f"epoch {epoch}: loss {gradient[4] / world:.3f}, first draws {[draws[:5] for draws in ledger]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
