# mistake: keeps the modes of the model and of its direct children
# state: wrong
# check: the model is as it was
# message: the dropout in its block came back in another mode

import math

import torch
import torch.distributed as dist
from torch.nn.utils.rnn import pad_sequence


def evaluate(model: torch.nn.Module, samples: list[torch.Tensor], batch_size: int) -> dict[str, float]:
    """Loss per target, perplexity and number of targets over all samples, the same on every rank."""
    was_training = {module: module.training for module in (model, *model.children())}
    model.eval()
    mine = samples[dist.get_rank() :: dist.get_world_size()]
    sums = torch.zeros(2, dtype=torch.float64)  # of the losses, of the targets
    with torch.no_grad():
        for first in range(0, len(mine), batch_size):
            batch = mine[first : first + batch_size]
            inputs = pad_sequence([sample[:-1] for sample in batch], batch_first=True)
            targets = pad_sequence([sample[1:] for sample in batch], batch_first=True, padding_value=-100)
            sums += torch.stack([model(inputs, targets), (targets != -100).sum()])
    for module, training in was_training.items():
        module.training = training

    dist.all_reduce(sums)
    loss = (sums[0] / sums[1]).item()
    return {"loss": loss, "perplexity": math.exp(loss), "tokens": int(sums[1])}
