# route: deals contiguous chunks; rank 0 divides and broadcasts

import torch
import torch.distributed as dist
from torch.nn.utils.rnn import pad_sequence


@torch.no_grad()
def evaluate(model, samples, batch_size):
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    share = torch.arange(len(samples)).tensor_split(dist.get_world_size())[dist.get_rank()]
    mine = [samples[i] for i in share.tolist()]
    sums = torch.zeros(2, dtype=torch.float64)  # of the losses, of the targets
    for first in range(0, len(mine), batch_size):
        batch = mine[first : first + batch_size]
        inputs = pad_sequence([sample[:-1] for sample in batch], batch_first=True)
        targets = pad_sequence([sample[1:] for sample in batch], batch_first=True, padding_value=-100)
        sums += torch.stack([model(inputs, targets), (targets != -100).sum()])
    for module, training in was_training.items():
        module.training = training

    dist.reduce(sums, dst=0)
    dist.broadcast(sums, src=0)
    loss = (sums[0] / sums[1]).item()
    return {"loss": loss, "perplexity": torch.tensor(loss, dtype=torch.float64).exp(), "tokens": int(sums[1])}
