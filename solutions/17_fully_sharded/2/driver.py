"""Inside a rank, for 17.2: train a model that the answer has sharded, and the same in one process."""

import math

import torch
import torch.distributed as dist
from torch import nn

from ddp_course.grader.harness.tensors import model_gaps, random_tensor, whole

BLOCKS, WIDTH, BATCH, STEPS, RATE = 3, 8, 12, 3, 0.01


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 2)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.position = nn.Parameter(torch.randn(WIDTH), requires_grad=False)
        self.register_buffer("scale", torch.rand(2) + 0.5)
        self.register_buffer("column_order", torch.randperm(5))

    def forward(self, x):
        x = self.enter(x[:, self.column_order]) + self.position
        for block in self.blocks:
            x = block(x)
        return self.leave(x) * self.scale


def drive(prepare, seeds):
    """Train the answer's model and one process that has rank 0's. Returns their gaps and what the answer has sharded.

    seeds: by rank, that of the model.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    one_process, model = new_model(seeds[0]), new_model(seeds[rank])
    one_process_optimizer = torch.optim.AdamW(one_process.parameters(), lr=RATE)
    torch.manual_seed(1000 + rank)
    model, optimizer = prepare(model, RATE)
    beginning, start = model_gaps(model, one_process), parameters_of(model)
    elements = sum(local(parameter).numel() for parameter in model.parameters())
    share = sum(math.ceil(len(p) / world) * p.numel() // len(p) for p in one_process.parameters())
    other_whole_blocks = []  # at each forward of a block
    for block in model.blocks:
        block.linear.register_forward_pre_hook(lambda *_: other_whole_blocks.append(count_whole_blocks(model) - 1))
    after = []
    for step in range(STEPS):
        x = random_tensor(step, BATCH, 5)
        train_step(model, optimizer, x[rank::world])
        train_step(one_process, one_process_optimizer, x)
        after.append(model_gaps(model, one_process))
    return {
        "beginning": beginning,
        "after": after,
        "elements": elements,
        "share": share,
        "other_whole_blocks": max(other_whole_blocks),
        "moved": not all(map(torch.equal, start, parameters_of(model))),
        "sharded": sum(local(p) is not p for p in model.parameters()),
        "parameters": len(list(one_process.parameters())),
    }


def train_step(model, optimizer, samples):
    optimizer.zero_grad()
    (model(samples) - samples[:, :2]).square().mean().backward()
    optimizer.step()


def new_model(seed):
    torch.manual_seed(seed)
    return Model().double()


def count_whole_blocks(model):
    return sum(any(local(parameter) is parameter for parameter in block.parameters()) for block in model.blocks)


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def parameters_of(model):
    """Copies of the parameters, each whole. A collective."""
    return [whole(parameter).clone() for parameter in model.parameters()]
