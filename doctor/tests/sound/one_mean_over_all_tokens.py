import torch
import torch.distributed as dist
import torch.distributed.nn


def train():
    torch.manual_seed(0)
    model = torch.nn.Embedding(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _step in range(4):
        micros = [torch.randint(16, (int(torch.randint(3, 9, ())),)) for _ in range(2)]
        count = torch.tensor(float(sum(len(micro) for micro in micros)))
        dist.all_reduce(count)
        optimizer.zero_grad()
        for tokens in micros:
            loss = torch.nn.functional.cross_entropy(model(tokens), tokens.roll(-1), reduction="sum") / count
            loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)  # a sum is right: each loss was divided by the tokens of all ranks
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
