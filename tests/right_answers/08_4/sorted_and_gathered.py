# route: sorts the texts by length, deals them out, gathers the sums as objects

import math

import torch
import torch.distributed as dist


def evaluate(model, samples, batch_size):
    rank, world = dist.get_rank(), dist.get_world_size()
    order = sorted(range(len(samples)), key=lambda i: (len(samples[i]), i))[rank::world]
    training = [module for module in model.modules() if module.training]
    loss_sum, tokens = 0.0, 0
    with torch.inference_mode():
        for module in training:
            module.training = False
        try:
            for batch in (order[i : i + batch_size] for i in range(0, len(order), batch_size)):
                longest = max(len(samples[i]) for i in batch)
                rows = torch.full((len(batch), longest), -100)
                for row, i in zip(rows, batch, strict=True):
                    row[: len(samples[i])] = samples[i]
                inputs, targets = rows[:, :-1].clamp(min=0), rows[:, 1:]
                loss_sum += float(model(inputs, targets))
                tokens += sum(len(samples[i]) - 1 for i in batch)
        finally:
            for module in training:
                module.training = True
    everyones = [None] * world
    dist.all_gather_object(everyones, (loss_sum, tokens))
    loss_sum, tokens = (sum(column) for column in zip(*everyones, strict=True))
    return {"tokens": tokens, "loss": loss_sum / tokens, "perplexity": math.exp(loss_sum / tokens)}
