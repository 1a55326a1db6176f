# mistake: averages the ranks' perplexities
# state: wrong
# check: the numbers are exact
# message: the mean of the ranks' perplexities

import torch
import torch.distributed as dist
from torch.nn.utils.rnn import pad_sequence


@torch.no_grad()
def evaluate(model, samples, batch_size):
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    mine = samples[dist.get_rank() :: dist.get_world_size()]
    sums = torch.zeros(2, dtype=torch.float64)  # of the losses, of the targets
    for first in range(0, len(mine), batch_size):
        batch = mine[first : first + batch_size]
        inputs = pad_sequence([sample[:-1] for sample in batch], batch_first=True)
        targets = pad_sequence([sample[1:] for sample in batch], batch_first=True, padding_value=-100)
        sums += torch.stack([model(inputs, targets), (targets != -100).sum()])
    for module, training in was_training.items():
        module.training = training

    own = torch.stack([(sums[0] / sums[1]).exp().nan_to_num(), (sums[1] > 0).double()])
    dist.all_reduce(own)
    dist.all_reduce(sums)
    loss = (sums[0] / sums[1]).item()
    return {"loss": loss, "perplexity": (own[0] / own[1]).item(), "tokens": int(sums[1])}
