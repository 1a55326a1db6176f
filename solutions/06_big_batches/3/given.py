"""The loss per token, and its gradient, in one step: several micro-batches of padded lines on every rank."""

import contextlib
import os
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn  # imported later, by an optimizer or DDP, it would keep the group alive past its end
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

IGNORED = -100  # a target behind the end of a line


def make_model():
    """Logits of 5 tokens from tokens: (lines, length) of int64 -> (lines, length, 5). The same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5)).double()


def micro_batches_of(rank, lengths):
    """A micro-batch (inputs, targets) for each list in `lengths`, with a line of each of its lengths."""
    torch.manual_seed(int(np.random.SeedSequence([1, rank]).generate_state(1)[0]))
    batches = []
    for lines in lengths:
        inputs, targets = torch.randint(5, (len(lines), 8)), torch.randint(5, (len(lines), 8))
        behind = torch.arange(8) >= torch.tensor(lines, dtype=torch.int64)[:, None]
        batches.append((inputs, targets.masked_fill(behind, IGNORED)))
    return batches


def loss_and_gradients(module, micro_batches):
    """(the loss of the global batch, [its gradient for each parameter of `module`]), the same on every rank."""
    model = DistributedDataParallel(module)
    global_loss = torch.zeros((), dtype=torch.float64)
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        with contextlib.nullcontext() if number == len(micro_batches) else model.no_sync():
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
            loss = loss / len(micro_batches)
            loss.backward()
        global_loss += loss.detach()
    dist.all_reduce(global_loss)
    return global_loss.item() / dist.get_world_size(), [parameter.grad for parameter in module.parameters()]


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    lengths = [[[8, 8], [2, 1]], [[3, 1], [7, 8]]][int(os.environ["RANK"]) % 2]
    loss, gradients = loss_and_gradients(make_model(), micro_batches_of(int(os.environ["RANK"]), lengths))
    print(f"loss {loss:.6f}, largest gradient {max(grad.abs().max().item() for grad in gradients):.6f}", flush=True)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
