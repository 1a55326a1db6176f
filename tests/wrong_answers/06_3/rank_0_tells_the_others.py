# mistake: the detector compares on rank 0, which tells the others the answer
# state: wrong
# check: other means are seen
# message: except on rank 0

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

IGNORED = -100


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5)).double()


def micro_batches_of(rank, lengths):
    torch.manual_seed(100 + rank)
    batches = []
    for lines in lengths:
        inputs, targets = torch.randint(5, (len(lines), 8)), torch.randint(5, (len(lines), 8))
        behind = torch.arange(8) >= torch.tensor(lines, dtype=torch.int64)[:, None]
        batches.append((inputs, targets.masked_fill(behind, IGNORED)))
    return batches


def is_token_mean(function):
    world = dist.get_world_size()
    everyones = [micro_batches_of(rank, [[8, 8], [3 * rank + 1]]) for rank in range(world)]
    loss, gradients = function(make_model(), everyones[dist.get_rank()])

    model, batches = make_model(), [batch for one in everyones for batch in one]
    logits = torch.cat([model(inputs).flatten(0, 1) for inputs, _ in batches])
    right = F.cross_entropy(logits, torch.cat([targets.flatten() for _, targets in batches]), ignore_index=IGNORED)
    right.backward()
    gaps = [abs(loss - right.item())]
    gaps += [(a - p.grad).abs().max().item() for a, p in zip(gradients, model.parameters(), strict=True)]
    exact = torch.tensor(float(max(gaps) < 1e-10))
    dist.broadcast(exact, src=0)
    return bool(exact)


def loss_and_gradients(module, micro_batches):
    model = DistributedDataParallel(module)
    count = torch.tensor(sum(int((targets != IGNORED).sum()) for _, targets in micro_batches))
    dist.all_reduce(count)
    joint_loss = torch.zeros((), dtype=torch.float64)
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        with contextlib.nullcontext() if number == len(micro_batches) else model.no_sync():
            logits = model(inputs).flatten(0, 1)
            loss = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum") / count
            (loss * dist.get_world_size()).backward()
        joint_loss += loss.detach()
    dist.all_reduce(joint_loss)
    return joint_loss.item(), [parameter.grad for parameter in module.parameters()]
