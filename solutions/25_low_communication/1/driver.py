"""Inside a rank, for 25.1: a worker with the answer's outer steps, and one process that simulates all workers."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ddp_course.grader.harness.tensors import largest_gap, random_tensor


def drive(build, kind, steps, every, lr, momentum):
    """The gaps of weights and inner optimizer to the simulated worker after each step, and the last weights.

    If there is an outer step, also how the first one moved the weights.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    simulated = [new_worker(kind) for _ in range(world)]
    global_weights = nn.Parameter(weights(simulated[0]))
    outer = torch.optim.SGD([global_weights], lr, momentum, nesterov=momentum > 0)
    worker = new_worker(kind)
    diloco, reports, first_outer_step = build(worker[1], every, lr, momentum), [], {}
    for step in range(1, steps + 1):
        for number, peer in enumerate(simulated):
            take_step(peer, step, number)
        if step % every == 0:
            start = global_weights.detach().clone()
            global_weights.grad = sum(start - weights(peer) for peer in simulated) / world
            outer.step()
            for model, _ in simulated:
                vector_to_parameters(global_weights.detach().clone(), model.parameters())
        take_step(worker, step, rank)
        before = [parameter.detach().clone() for parameter in worker[0].parameters()]
        diloco.step()
        gap = largest_gap(weights(worker), weights(simulated[rank]))
        reports.append({"gap": gap, "state gap": state_gap(worker, simulated[rank])})
        if step == every:
            unmoved = sum(map(torch.equal, before, worker[0].parameters()))
            movement = weights(worker) - start
            first_outer_step = {"movement": movement, "mean movement": -global_weights.grad, "unmoved": unmoved}
    return {"steps": reports, "weights": weights(worker)} | first_outer_step


def new_worker(kind):
    """A model, the same for all workers, and its inner optimizer."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    parameters = list(model.parameters())
    if kind == "AdamW":
        groups = [{"params": parameters[::2], "lr": 0.02}, {"params": parameters[1::2]}]
        return model, torch.optim.AdamW(groups, lr=0.01)
    return model, torch.optim.SGD(parameters, lr=0.1)


def take_step(worker, step, number):
    """One step on the data of worker `number`."""
    model, optimizer = worker
    x = random_tensor(100 * number + step, 6, 3)
    optimizer.zero_grad()
    (model(x) - x[:, :2] * x[:, 1:]).square().mean().backward()
    optimizer.step()


def weights(worker):
    """A copy of the worker's weights, as one vector."""
    return parameters_to_vector(worker[0].parameters()).detach().clone()


def state_gap(worker, right):
    """The largest difference of the inner optimizers' states; infinite if the worker lacks what `right` has."""
    gaps = [0.0]
    for parameter, right_parameter in zip(worker[0].parameters(), right[0].parameters(), strict=True):
        state = worker[1].state.get(parameter, {})
        right_state = right[1].state.get(right_parameter, {})
        gaps += [largest_gap(state.get(entry), tensor) for entry, tensor in right_state.items()]
    return max(gaps)
