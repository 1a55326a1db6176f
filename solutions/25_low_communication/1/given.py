"""DiLoCo: each worker trains on its own data, with an outer step every few steps. The loss falls."""

import torch
import torch.distributed as dist
import torch.distributed.nn  # noqa: F401 (before there is a group)
from torch import nn
from torch.nn.utils import parameters_to_vector

STEPS, EVERY = 48, 8


class DiLoCo:
    """After every `every` steps of `inner`, SGD takes an outer step with the mean pseudo-gradient."""

    def __init__(self, inner, every, lr, momentum):
        self.local = [parameter for group in inner.param_groups for parameter in group["params"]]
        self.every, self.steps = every, 0
        self.global_weights = [parameter.detach().clone() for parameter in self.local]  # after the last outer step
        self.outer = torch.optim.SGD(self.local, lr, momentum, nesterov=momentum > 0)

    def step(self):
        """Call it after each step of `inner`."""
        self.steps += 1
        if self.steps % self.every == 0:
            self.outer_step()

    @torch.no_grad()
    def outer_step(self):
        for parameter, global_weight in zip(self.local, self.global_weights, strict=True):
            dist.all_reduce(parameter, op=dist.ReduceOp.AVG)
            parameter.grad = global_weight - parameter
        self.outer.step()
        for parameter, global_weight in zip(self.local, self.global_weights, strict=True):
            global_weight.copy_(parameter)


def loss_of(model, step):
    """On this worker's data."""
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(1000 * dist.get_rank() + step))
    return (model(x) - torch.sin(2 * x)).square().mean()


def weights(model):
    return parameters_to_vector(model.parameters()).detach()


def train(model):
    """With outer rate 1 and no momentum: how far the first outer step moves the global weights."""
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    diloco = DiLoCo(inner, EVERY, lr=1.0, momentum=0.0)
    start, losses = weights(model), []
    for step in range(1, STEPS + 1):
        inner.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        inner.step()
        losses.append(loss.item())
        way = weights(model) - start
        diloco.step()
        if step == EVERY:
            dist.all_reduce(way, op=dist.ReduceOp.AVG)
            times = ((weights(model) - start) @ way / (way @ way)).item()
    print(
        f"loss {losses[0]:.3f} to {losses[-1]:.3f}; first outer step: {times:.2f} times the mean movement", flush=True
    )


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    train(nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
