"""A small model on windows whose tokens are cut over the ranks. On one rank it is right, on two it is not."""

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: notebook 04
import torch.nn.functional as F
from torch import nn

KINDS, PAD, WINDOWS, LENGTH, WIDTH, STEPS = 32, 0, 8, 64, 32, 60


def backward(model, windows):
    """Leave the gradient of the mean loss over all targets of `windows` in the parameters; returns that loss."""
    rank, world = dist.get_rank(), dist.get_world_size()
    chunks = windows.chunk(2 * world, 1)
    tokens = torch.cat([chunks[rank], chunks[-1 - rank]], 1)  # an early and a late chunk, for equal work
    targets = F.pad(tokens[:, 1:], (0, 1), value=PAD)  # the last token has none
    positions = torch.arange(tokens.shape[1]) + rank * tokens.shape[1]
    loss = F.cross_entropy(model(tokens, positions).flatten(0, 1), targets.flatten(), ignore_index=PAD)
    loss.backward()
    loss = loss.detach()
    for tensor in [loss, *(parameter.grad for parameter in model.parameters())]:
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    return loss.item()


class Gather(torch.autograd.Function):
    """The parts of all ranks, one after the other along the tokens (dimension 1)."""

    @staticmethod
    def forward(ctx, part):
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, 1)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size(), 1)[dist.get_rank()]


class Model(nn.Module):
    """One layer of causal attention. `gather` brings the keys and values of all ranks, as Llama 3 does it."""

    def __init__(self, gather=Gather.apply):
        super().__init__()
        self.gather = gather
        self.token, self.position = nn.Embedding(KINDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.query_key_value, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, KINDS)

    def forward(self, tokens, positions):
        """tokens: (windows, tokens of this rank). positions: of each of these tokens in its window."""
        x = self.token(tokens) + self.position(positions)
        query, key, value = self.query_key_value(x).chunk(3, -1)
        visible = self.gather(positions[None]) <= positions[:, None]
        return self.output(x + F.scaled_dot_product_attention(query, self.gather(key), self.gather(value), visible))


def batch(step):
    """Windows of different lengths, filled up with PAD. Seven of eight tokens follow from the one before."""
    generator = torch.Generator().manual_seed(step)
    windows = torch.randint(1, KINDS, (WINDOWS, LENGTH), generator=generator)
    for index in range(1, LENGTH):
        follows = torch.rand(WINDOWS, generator=generator) > 1 / 8
        windows[:, index] = torch.where(follows, 1 + windows[:, index - 1] * 3 % (KINDS - 1), windows[:, index])
    lengths = torch.randint(LENGTH // 8, LENGTH, (WINDOWS, 1), generator=generator)
    return windows.masked_fill(torch.arange(LENGTH) >= lengths, PAD)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = Model().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = backward(model, batch(step))
        optimizer.step()
        if step in (0, STEPS - 1):
            print(f"loss of step {step + 1}: {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
