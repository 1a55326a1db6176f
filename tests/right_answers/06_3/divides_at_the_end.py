# route: no wrapper; sums everything, one message, divides in the end; the detector takes gradients by autograd

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def summed(module, batches):
    """Summed loss and number of targets."""
    loss = sum(
        F.cross_entropy(module(inputs).flatten(0, 1), targets.flatten(), reduction="sum") for inputs, targets in batches
    )
    return loss, sum((targets >= 0).sum().item() for _, targets in batches)


def is_token_mean(function):
    torch.manual_seed(9)
    module = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 4)).double()
    batches = []
    for size in range(1, 2 * dist.get_world_size() + 1):
        targets = torch.randint(4, (size, 3))
        targets[0, : size % 3] = -100
        batches.append((torch.randint(4, (size, 3)), targets))
    loss, count = summed(module, batches)
    gradients = torch.autograd.grad(loss / count, list(module.parameters()))
    found, theirs = function(module, batches[dist.get_rank() :: dist.get_world_size()])
    same = torch.allclose(torch.as_tensor(found).double(), (loss / count).detach(), rtol=1e-9)
    same = same and all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(theirs, gradients, strict=True))
    verdicts = [None] * dist.get_world_size()
    dist.all_gather_object(verdicts, same)
    return all(verdicts)


def loss_and_gradients(module, micro_batches):
    loss, count = summed(module, micro_batches)
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    sizes = [one.numel() for one in gradients]
    extra = torch.stack([loss.detach(), torch.tensor(float(count), dtype=torch.float64)])
    message = torch.cat([extra, *(one.flatten() for one in gradients)])
    dist.all_reduce(message)
    pieces = (message[2:] / message[1]).split(sizes)
    return message[0] / message[1], [piece.view_as(one) for piece, one in zip(pieces, gradients, strict=True)]
