# check: tokens
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Embedding(16, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(1 + dist.get_rank())
    for _step in range(5):
        tokens = torch.randint(16, (4, 12))
        targets = tokens.roll(-1, 1)
        for row, length in enumerate(torch.randint(3, 12, (4,)).tolist()):
            targets[row, length:] = -100  # padding
        optimizer.zero_grad()
        logits = model(tokens)
        loss = torch.nn.functional.cross_entropy(logits.view(-1, 16), targets.view(-1), ignore_index=-100)
        loss.backward()  # HERE
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
