"""A supervised contrastive loss that was written for one process, on several ranks."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.functional import normalize

ROWS, TEMPERATURE = 6, 0.1


def supervised_contrastive_loss(features, labels):
    """For each row the mean over its positives, the other rows of the same label; then the mean over the rows."""
    itself = torch.eye(len(features), dtype=torch.bool)
    positive = (labels[:, None] == labels) & ~itself
    log_p = (features @ features.T / TEMPERATURE).masked_fill(itself, -torch.inf).log_softmax(dim=1)
    per_row = -log_p.masked_fill(~positive, 0).sum(1) / positive.sum(1)
    return per_row.mean()


def main(seed):
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    features, labels = normalize(torch.randn(ROWS * size, 4), dim=1), torch.randint(4, (ROWS * size,))
    loss = supervised_contrastive_loss(features.chunk(size)[rank], labels.chunk(size)[rank])
    dist.all_reduce(loss)
    if rank == 0:
        whole = supervised_contrastive_loss(features, labels)
        print(f"loss {loss / size:.4f} on {size} ranks, {whole:.4f} on one process")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 0)
