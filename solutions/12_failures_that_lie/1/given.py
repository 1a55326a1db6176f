"""Four ranks train, and keep a record of each step. The loss falls, and a bit of one rank's memory has flipped."""

import hashlib
import json
import random
import sys
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn  # imported later, by an optimizer, it would keep the group alive past its end
from torch import nn

STEPS, BATCH = 8, 8  # steps of the run; samples that a rank reads in a step


def fingerprint(tensors):
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()[:8]


def train(flip):
    """flip: (rank, step, "optimizer" or "parameters"). Returns the loss and the record of each step on this rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.03, momentum=0.9)
    inputs, order = torch.randn(STEPS * BATCH * world, 8), torch.randperm(STEPS * BATCH * world)
    seed = int(np.random.SeedSequence([1, rank]).generate_state(1)[0])
    torch.manual_seed(seed)  # each rank has dropout masks of its own

    losses, record = [], []
    for step, global_batch in enumerate(order.split(BATCH * world)):
        samples, randomness = global_batch[rank::world], fingerprint([torch.get_rng_state()])
        loss = (model(inputs[samples]) - inputs[samples].mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        momentum = [optimizer.state[parameter]["momentum_buffer"] for parameter in parameters]
        if (rank, step) == flip[:2]:  # the lowest bit of the exponent: a value twice or half as large
            target = momentum if flip[2] == "optimizer" else parameters
            target[0].data.view(torch.int32)[0, 0] ^= 1 << 23
        losses.append(loss.item())
        record.append(
            {
                "samples": samples.tolist(),
                "random": randomness,
                "collectives": [["all_reduce", list(parameter.shape)] for parameter in parameters],
                "gradient": fingerprint(parameter.grad for parameter in parameters),
                "optimizer": fingerprint(momentum),
                "parameters": fingerprint(parameters),
            }
        )
    return losses, record


def main(seed):
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    luck = random.Random(seed)
    flip = luck.randrange(dist.get_world_size()), luck.randrange(1, STEPS - 1), luck.choice(["optimizer", "parameters"])
    losses, record = train(flip)
    losses, records = torch.tensor(losses) / dist.get_world_size(), [None] * dist.get_world_size()
    dist.all_reduce(losses)
    dist.all_gather_object(records, record)
    if dist.get_rank() == 0:
        print("loss", " ".join(f"{loss:.3f}" for loss in losses.tolist()))
        print(json.dumps({"report": list(zip(*records, strict=True)), "flip": flip}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 2)
