"""Inside a rank, for 25.1: a worker with the answer's meetings, and one process that plays all workers."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def drive(build, kind, updates, every, lr, momentum):
    """For each update: how far weights, and what the own optimizer keeps, are from the worker that is played."""
    rank, world = dist.get_rank(), dist.get_world_size()
    played = [new_worker(kind) for _ in range(world)]
    common = nn.Parameter(weights(played[0]))
    outer = torch.optim.SGD([common], lr, momentum, nesterov=momentum > 0)
    worker = new_worker(kind)
    meeting, reports = build(worker[1], every, lr, momentum), []
    for step in range(1, updates + 1):
        for number, other in enumerate(played):
            update(other, step, number)
        if step % every == 0:
            start = common.detach().clone()
            common.grad = sum(start - weights(other) for other in played) / world
            outer.step()
            for model, _ in played:
                vector_to_parameters(common.detach().clone(), model.parameters())
        update(worker, step, rank)
        own = [parameter.detach().clone() for parameter in worker[0].parameters()]
        meeting.step()
        gap = distance(weights(worker), weights(played[rank]))
        reports.append({"gap": gap, "state gap": state_gap(worker, played[rank])})
        if step == every:
            still = sum(map(torch.equal, own, worker[0].parameters()))  # parameters that the meeting has not moved
            first = {"moved": weights(worker) - start, "mean movement": -common.grad, "still": still}
    return {"steps": reports, "weights": weights(worker)} | (first if updates >= every else {})


def new_worker(kind):
    """A model, the same for all workers, and its own optimizer."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    parameters = list(model.parameters())
    if kind == "AdamW":
        groups = [{"params": parameters[::2], "lr": 0.02}, {"params": parameters[1::2]}]
        return model, torch.optim.AdamW(groups, lr=0.01)
    return model, torch.optim.SGD(parameters, lr=0.1)


def update(worker, step, number):
    """One update on the data of worker `number`."""
    model, optimizer = worker
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(100 * number + step), dtype=torch.float64)
    optimizer.zero_grad()
    (model(x) - x[:, :2] * x[:, 1:]).square().mean().backward()
    optimizer.step()


def weights(worker):
    model = worker[0] if isinstance(worker, tuple) else worker
    return parameters_to_vector(model.parameters()).detach().clone()


def state_gap(worker, right):
    """How far the state of the own optimizer is from that of the worker that is played; None if some is missing."""
    gaps = [0.0]
    for parameter, other in zip(worker[0].parameters(), right[0].parameters(), strict=True):
        for entry, value in right[1].state.get(other, {}).items():
            own = worker[1].state.get(parameter, {}).get(entry)
            if not torch.is_tensor(own) and torch.is_tensor(value):
                return None
            gaps.append(distance(own, value) if torch.is_tensor(value) else 0.0)
    return max(gaps)


def distance(tensor, right):
    return (tensor - right).abs().max().item() if tensor.shape == right.shape else float("inf")
