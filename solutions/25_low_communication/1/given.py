"""DiLoCo: each worker trains alone on its own data; every few updates the workers meet. The loss falls."""

import torch
import torch.distributed as dist
import torch.distributed.nn  # noqa: F401 (before there is a group)
from torch import nn
from torch.nn.utils import parameters_to_vector

UPDATES, EVERY = 48, 8


class DiLoCo:
    """After every `every` updates of `inner` they meet: the mean pseudo-gradient is the gradient of SGD."""

    def __init__(self, inner, every, lr, momentum):
        self.local = [parameter for group in inner.param_groups for parameter in group["params"]]
        self.every, self.updates = every, 0
        self.common = [parameter.detach().clone() for parameter in self.local]  # the weights of the last meeting
        self.outer = torch.optim.SGD(self.local, lr, momentum, nesterov=momentum > 0)

    def step(self):
        """After each update of `inner`."""
        self.updates += 1
        if self.updates % self.every == 0:
            self.meet()

    @torch.no_grad()
    def meet(self):
        for parameter, common in zip(self.local, self.common, strict=True):
            dist.all_reduce(parameter, op=dist.ReduceOp.AVG)
            parameter.grad = common - parameter
        self.outer.step()
        for parameter, common in zip(self.local, self.common, strict=True):
            common.copy_(parameter)


def loss_of(model, update):
    """On this worker's data."""
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(1000 * dist.get_rank() + update))
    return (model(x) - torch.sin(2 * x)).square().mean()


def weights(model):
    return parameters_to_vector(model.parameters()).detach()


def train(model):
    """With outer rate 1 and no momentum: how far the first meeting moves the common weights."""
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    meeting = DiLoCo(inner, EVERY, lr=1.0, momentum=0.0)
    start, losses = weights(model), []
    for update in range(1, UPDATES + 1):
        inner.zero_grad()
        loss = loss_of(model, update)
        loss.backward()
        inner.step()
        losses.append(loss.item())
        way = weights(model) - start
        meeting.step()
        if update == EVERY:
            dist.all_reduce(way, op=dist.ReduceOp.AVG)
            times = ((weights(model) - start) @ way / (way @ way)).item()
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}; first meeting: {times:.2f} times the mean movement", flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    train(nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
