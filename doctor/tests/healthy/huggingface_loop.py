# needs: transformers
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=50, n_positions=16)
    model = DistributedDataParallel(GPT2LMHeadModel(config))
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = get_linear_schedule_with_warmup(optimizer, 2, 10)
    tokens = torch.randint(0, 50, (24, 16))
    torch.manual_seed(1 + dist.get_rank())  # else both ranks draw the same dropout masks
    loader = DataLoader(tokens, batch_size=4, sampler=DistributedSampler(tokens))
    for batch in loader:
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(loss.item())


main()
dist.destroy_process_group()
