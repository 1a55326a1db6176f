"""An MLP cut over the ranks, between two norms that all ranks hold. Gradients are clipped before each step."""

import torch
import torch.distributed as dist
import torch.distributed.nn  # noqa: F401 (before there is a group)
from torch import nn

WIDTH, HIDDEN, STEPS, LIMIT = 6, 24, 20, 0.5


def clip(parameters, max_norm):
    """Scale the gradients if their norm is larger than `max_norm`; returns the norm.

    parameter.cut: this rank holds its part of the weight. Otherwise every rank holds all of it.
    """
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm)


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part):
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def new_model():
    """The same on all ranks, but for the weights that are cut."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    norm, last = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
    first, second = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH, bias=False)
    first.weight = nn.Parameter(first.weight.detach().chunk(world)[rank].clone())
    first.bias = nn.Parameter(first.bias.detach().chunk(world)[rank].clone())
    second.weight = nn.Parameter(second.weight.detach().chunk(world, 1)[rank].clone())
    model = nn.ModuleList([norm, first, second, last])
    for parameter in model.parameters():
        parameter.cut = False
    for parameter in [*first.parameters(), *second.parameters()]:
        parameter.cut = True
    return model


def train(model):
    norm, first, second, last = model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        x = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(step))  # the same on all ranks
        y = last(x + Leave.apply(second(torch.tanh(first(Enter.apply(norm(x)))))))
        optimizer.zero_grad()
        (y - x.flip(1)).square().mean().backward()
        length = clip(list(model.parameters()), LIMIT)
        optimizer.step()
    print(f"last gradient norm {length:.4f}, first numbers of the last norm {last.weight[:2].tolist()}", flush=True)


def main():
    dist.init_process_group("gloo")
    train(new_model())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
