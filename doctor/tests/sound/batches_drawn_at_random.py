import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel


def train():
    torch.manual_seed(0)
    tokens = torch.randint(50, (400,))
    model = DistributedDataParallel(torch.nn.Embedding(50, 50))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    for _step in range(8):
        begins = torch.randint(len(tokens) - 17, (8,), generator=generator)  # two ranks may draw the same window
        windows = torch.stack([tokens[begin : begin + 17] for begin in begins.tolist()])
        optimizer.zero_grad()
        logits = model(windows[:, :-1])
        torch.nn.functional.cross_entropy(logits.reshape(-1, 50), windows[:, 1:].reshape(-1)).backward()
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
