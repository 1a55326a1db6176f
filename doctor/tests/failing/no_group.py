import torch.distributed as dist

print("rank", dist.get_rank())
