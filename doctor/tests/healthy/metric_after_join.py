# Join handles the ranks' uneven numbers of batches; then one sum over all ranks.
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _epoch in range(2):
    with Join([model]):
        for _ in range(3 + 2 * rank):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
sample_count = torch.tensor(3.0 + 2 * rank)
dist.all_reduce(sample_count)
assert sample_count.item() == 8
dist.destroy_process_group()
