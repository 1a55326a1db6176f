# mistake: the detector compares numbers with ==, which 0.0 and -0.0 pass
# state: wrong
# check: the detector finds the step
# message: 0.0 on two ranks and -0.0 on one, in step 2): where_replicas_part returned None

import torch
import torch.distributed as dist
from torch.nn.functional import linear


def where_replicas_part(train, batches, scale):
    histories = [None] * dist.get_world_size()
    dist.all_gather_object(histories, train(batches, scale))

    def same(a, b):
        numbers = zip([*a[0], a[1]], [*b[0], b[1]], strict=True)
        return all(x == y or (x != x and y != y) for x, y in numbers)

    for step in range(max(map(len, histories))):
        if any(step >= len(history) for history in histories):
            return step
        if not all(same(history[step], histories[0][step]) for history in histories):
            return step
    return None


def average_gradient(weight):
    dist.all_reduce(weight.grad)
    weight.grad /= dist.get_world_size()


def train(batches, scale):
    weight = torch.zeros(1, 2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    history = []
    for inputs, targets in batches:
        with torch.autocast("cpu", torch.float16):
            loss = (linear(inputs, weight) - targets).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        average_gradient(weight)
        scaler.step(optimizer)
        scaler.update()
        history.append([weight[0].tolist(), scaler.get_scale()])
    return history
