# mistake: all-reduces after each batch, the same number of times on every rank
# state: wrong
# check: few messages
# message: rank 0 started 3 operations

import math

import torch
import torch.distributed as dist
from torch.nn.utils.rnn import pad_sequence


@torch.no_grad()
def evaluate(model, samples, batch_size):
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    world = dist.get_world_size()
    mine = samples[dist.get_rank() :: world]
    sums = torch.zeros(2, dtype=torch.float64)
    for first in range(0, -(-len(samples) // world), batch_size):
        pair = torch.zeros(2, dtype=torch.float64)
        if batch := mine[first : first + batch_size]:
            inputs = pad_sequence([sample[:-1] for sample in batch], batch_first=True)
            targets = pad_sequence([sample[1:] for sample in batch], batch_first=True, padding_value=-100)
            pair += torch.stack([model(inputs, targets), (targets != -100).sum()])
        dist.all_reduce(pair)
        sums += pair
    for module, training in was_training.items():
        module.training = training
    loss = (sums[0] / sums[1]).item()
    return {"loss": loss, "perplexity": math.exp(loss), "tokens": int(sums[1])}
